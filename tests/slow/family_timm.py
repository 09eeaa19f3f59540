"""Families of timm for field_families.py: of each the smallest variant, narrowed where its options allow,
with random weights and ten classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from field_zoo import CLASSES, Entry
from torch import nn

SHORT = {"depths": (1, 1, 1, 1)}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}

# Name -> side of the image and options.
NETS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "beit_base_patch16_224": (32, VIT),
    "beitv2_base_patch16_224": (32, VIT),
    "bat_resnext26ts": (256, {}),
    "botnet26t_256": (64, {"img_size": 64}),
    "cait_xxs24_224": (32, {**VIT, "depth": 2, "depth_token_only": 1}),
    "coat_lite_tiny": (64, {"img_size": 64, "serial_depths": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64)}),
    "coat_tiny": (64, {"img_size": 64, "serial_depths": (1, 1, 1, 1), "parallel_depth": 1}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "coatnext_nano_rw_224": (64, {"img_size": 64}),
    "convit_tiny": (32, {**VIT, "depth": 3, "local_up_to_layer": 2}),
    "convmixer_768_32": (56, {}),
    "convnext_atto": (64, SHORT),
    "convnextv2_atto": (64, SHORT),
    "cpubone_nano": (64, {}),
    "crossvit_9_240": (240, {"depth": ((1, 1, 0),)}),
    "csatv2": (64, {}),
    "cs3darknet_s": (64, {}),
    "cspdarknet53": (64, {}),
    "cspnext_tiny": (64, {}),
    "darknet17": (64, {}),
    "davit_tiny": (64, {"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4)}),
    "deit_tiny_distilled_patch16_224": (32, VIT),
    "deit3_small_patch16_224": (32, VIT),
    "densenet121": (64, {"block_config": (2, 2, 2, 2)}),
    "densenetblur121d": (64, {"block_config": (2, 2, 2, 2)}),
    "dla46_c": (64, {}),
    "dla60_res2net": (64, {"levels": (1, 1, 1, 1, 1, 1), "channels": (16, 16, 32, 32, 64, 64)}),
    "dpn48b": (64, {}),
    "eca_halonext26ts": (256, {}),
    "ecaresnet26t": (64, {"layers": (1, 1, 1, 1)}),
    "edgenext_small": (64, {"depths": (1, 1, 2, 2), "dims": (16, 32, 48, 64)}),
    "efficientformer_l1": (224, {"depths": (1, 1, 1, 2), "embed_dims": (16, 24, 32, 48)}),
    "efficientformerv2_s0": (224, {"depths": (1, 1, 2, 2)}),
    "efficientnet_es": (64, {}),
    "efficientnet_lite0": (64, {}),
    "efficientvim_m1": (224, {}),
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (224, {}),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "embed_dim": 48, "depth": 2, "num_heads": 3}),
    "fasternet_t0": (64, {"depths": (1, 1, 1, 1)}),
    "fastvit_t8": (64, {"layers": (1, 1, 1, 1)}),
    "fbnetc_100": (64, {}),
    "fbnetv3_b": (64, {}),
    "focalnet_tiny_srf": (64, {}),
    "gcresnext26ts": (64, {}),
    "gcvit_xxtiny": (224, {}),
    "gernet_s": (64, {}),
    "ghostnetv2_100": (64, {}),
    "ghostnetv3_100": (64, {}),
    "gmixer_12_224": (64, {"img_size": 64}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "hardcorenas_a": (64, {}),
    "hgnet_tiny": (64, {}),
    "hgnetv2_b0": (64, {}),
    "hiera_tiny_224": (64, {"img_size": 64, "embed_dim": 24, "stages": (1, 1, 1, 1)}),
    "hrnet_w18_small": (64, {}),
    "iformer_t": (64, {}),
    "inception_next_atto": (64, SHORT),
    "inception_resnet_v2": (96, {}),
    "inception_v4": (96, {}),
    "lambda_resnet26t": (64, {}),
    "lcnet_050": (64, {}),
    "lcnetv2_base": (64, {}),
    "legacy_seresnet18": (64, {}),
    "levit_128s": (64, {"img_size": 64}),
    "lowformer_b0": (64, {}),
    "mambaout_femto": (64, {"depths": (1, 1, 1, 1)}),
    "maxvit_pico_rw_256": (64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "maxxvit_rmlp_nano_rw_256": (64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "mixnet_s": (64, {}),
    "mnasnet_small": (64, {}),
    "mobilenet_edgetpu_v2_xs": (64, {}),
    "mobilenetv4_conv_small_050": (64, {}),
    "mobilenetv4_hybrid_medium": (64, {}),
    "mobilenetv5_base": (64, {"channel_multiplier": 0.1}),
    "mobileone_s0": (64, {}),
    "mobilevitv2_050": (64, {}),
    "mvitv2_tiny": (64, {"img_size": 64}),
    "naflexvit_base_patch16_gap": (32, {"embed_dim": 48, "depth": 2, "num_heads": 3, "patch_size": 8}),
    "nasnetalarge": (96, {"stem_size": 24, "num_features": 192}),
    "nest_tiny": (64, {"img_size": 64}),
    "nextvit_small": (64, {}),
    "eca_nfnet_l0": (64, {}),
    "nf_regnet_b0": (64, {}),
    "nf_resnet26": (64, {}),
    "pit_ti_224": (64, {"img_size": 64}),
    "poolformer_s12": (64, {}),
    "poolformerv2_s12": (64, {}),
    "convformer_s18": (64, {}),
    "caformer_s18": (64, {}),
    "pvt_v2_b0": (64, {"depths": (1, 1, 1, 1)}),
    "rdnet_tiny": (64, {}),
    "regnetv_040": (64, {}),
    "regnetx_002": (64, {}),
    "regnety_002": (64, {}),
    "regnetz_005": (64, {}),
    "repghostnet_050": (64, {}),
    "repvit_m0_9": (64, {"depth": (1, 1, 2, 1)}),
    "res2net50_26w_4s": (64, {"layers": (1, 1, 1, 1)}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "resnest14d": (64, {}),
    "resnet10t": (64, {}),
    "resnetblur50": (64, {"layers": (1, 1, 1, 1)}),
    "resnetv2_18": (64, {}),
    "resnetv2_50x1_bit": (64, {}),
    "resnetv2_50d_evos": (64, {"layers": (1, 1, 1, 1)}),
    "resnetv2_50d_gn": (64, {"layers": (1, 1, 1, 1)}),
    "rexnet_100": (64, {}),
    "samvit_base_patch16_224": (64, {**VIT, "img_size": 64}),
    "sam2_hiera_tiny": (64, {"embed_dim": 24, "stages": (1, 1, 2, 1), "global_att_blocks": (3,)}),
    "sebotnet33ts_256": (64, {"img_size": 64}),
    "selecsls42": (64, {}),
    "semnasnet_050": (64, {}),
    "senet154": (64, {"layers": (1, 1, 1, 1)}),
    "sequencer2d_s": (56, {
        "layers": (1, 1, 1, 1), "embed_dims": (24, 32, 32, 32), "hidden_sizes": (6, 8, 8, 8),
    }),
    "shvit_s1": (64, {}),
    "skresnet18": (64, {}),
    "spnasnet_100": (64, {}),
    "starnet_s050": (64, {}),
    "swiftformer_xs": (64, {"layers": (1, 1, 2, 1)}),
    "swin_tiny_patch4_window7_224": (56, {"img_size": 56, "depths": (2, 2, 1, 1), "embed_dim": 24}),
    "swinv2_tiny_window8_256": (64, {
        "img_size": 64, "depths": (2, 2, 1, 1), "embed_dim": 24, "window_size": 4,
    }),
    "swinv2_cr_tiny_224": (64, {"img_size": 64, "depths": (2, 2, 1, 1), "embed_dim": 24, "window_size": 4}),
    "test_efficientnet_evos": (64, {}),
    "test_efficientnet_gn": (64, {}),
    "test_efficientnet_ln": (64, {}),
    "test_nfnet": (64, {}),
    "test_vit4": (64, {"img_size": 64}),
    "tf_efficientnetv2_b0": (64, {}),
    "tf_mobilenetv3_small_minimal_100": (64, {}),
    "tiny_vit_5m_224": (224, {
        "depths": (1, 1, 2, 1), "embed_dims": (16, 32, 32, 64), "num_heads": (1, 1, 2, 2),
    }),
    "tinynet_e": (64, {}),
    "tnt_s_legacy_patch16_224": (32, {
        "img_size": 32, "depth": 2, "embed_dim": 48, "inner_dim": 12, "num_heads_inner": 2,
    }),
    "tresnet_m": (64, {}),
    "twins_pcpvt_small": (64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "twins_svt_small": (64, {"img_size": 64, "depths": (1, 1, 2, 2)}),
    "visformer_tiny": (64, {"img_size": 64, "depth": (1, 1, 1), "embed_dim": 48}),
    "vit_base_patch16_rpn_224": (32, VIT),
    "vit_pwee_patch16_reg1_gap_256": (32, VIT),
    "vit_relpos_small_patch16_224": (32, VIT),
    "vit_srelpos_small_patch16_224": (32, VIT),
    "vit_dpwee_patch16_reg1_gap_256": (32, VIT),
    "vit_dlittle_patch16_reg1_gap_256": (32, VIT),
    "vit_xsmall_patch16_clip_224": (32, VIT),
    "vit_small_r26_s32_224": (64, {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}),
    "vitamin_small_224": (64, {"img_size": 64}),
    "volo_d1_224": (64, {"img_size": 64}),
    "ese_vovnet19b_slim": (64, {}),
    "wide_resnet50_2": (64, {"layers": (1, 1, 1, 1)}),
    "xception41p": (64, {}),
    "xcit_nano_12_p16_224": (64, {"img_size": 64, "depth": 2, "cls_attn_layers": 1, "embed_dim": 48}),
    "gemma4_vit_167m": (48, {"embed_dim": 48, "depth": 2, "num_heads": 3}),
    "qwen3_vit_88m": (64, {"embed_dim": 48, "depth": 2, "num_heads": 3}),
    "deepseek_vit_412m": (56, {"embed_dim": 48, "depth": 2, "num_heads": 3}),
    "legacy_xception": (96, {}),
}  # fmt: skip


# With the usual batches, an input of a ReLU or two neighbours in a pool are nearer to a kink than rounding.
SEEDS: Mapping[str, int] = {"efficientnet_lite0": 4, "gcvit_xxtiny": 4, "selecsls42": 4, "spnasnet_100": 4}


def entries() -> dict[str, Entry]:
    """By name the model to train."""
    found = {}
    for name, (side, options) in NETS.items():
        seed = SEEDS.get(name, Entry.seed)
        found[f"timm.{name}"] = Entry(_maker(name, options), {"x": (3, side, side)}, seed=seed)
    return found


def _maker(name: str, options: Mapping[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return _still(timm.create_model(name, pretrained=False, num_classes=CLASSES, **options))

    return make


def _still(model: nn.Module) -> nn.Module:
    """Without what draws random numbers."""
    for module in model.modules():
        for name in ("p", "drop_prob", "drop_rate"):
            if (
                isinstance(getattr(module, name, None), float)
                and "drop" in type(module).__name__.lower() + name
            ):
                setattr(module, name, 0.0)
    return model
