"""Verification: a trimmed trainer must compute the same bits as the full one, on every target that runs here.

`prove` compares trimmed and full builds, `cross_target` targets with each other, `trajectory` a build with recorded
steps. Tolerances stand in `tolerance` with their derivation; loosen none to pass a test.
"""
