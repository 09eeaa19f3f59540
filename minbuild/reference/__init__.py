"""Reference implementations in float64 that built trainers are compared with."""
