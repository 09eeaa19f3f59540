"""Model types of transformers for field_families.py, narrow and shallow, with random weights. A type's own
configuration stays but for the sizes of SMALL that it has, and what its row gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import field_layers as own
from field_zoo import CLASSES, LABELLED, WORDS, WORDS_IN, Entry
from torch import nn

SMALL: Mapping[str, Any] = {
    "vocab_size": WORDS, "vocab_size_per_layer_input": WORDS, "hidden_size": 32, "d_model": 32, "n_embd": 32,
    "dim": 32, "embedding_size": 16, "num_hidden_layers": 2, "num_layers": 2, "n_layers": 2, "n_layer": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2, "num_attention_heads": 4, "n_heads": 4,
    "n_head": 4, "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "intermediate_size": 48, "d_ff": 48, "ffn_dim": 48,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "hidden_dim": 48, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "n_positions": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 2, "forced_eos_token_id": None,
    "use_cache": False, "num_labels": CLASSES, "image_size": 32, "patch_size": 8, "rotary_dim": 4,
    "word_embed_proj_dim": 32, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "apply_spec_augment": False, "mask_time_prob": 0.0, "classifier_proj_size": 16, "type_vocab_size": 2,
}  # fmt: skip
LEFT = ...  # a size of SMALL that does not fit this type
_WAVES = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
_STAGES = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
_TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_WORDS = {"vocab_size": WORDS, "max_position_embeddings": 16}
_TWO_TOWERS = {
    "text_config": {**_TOWER, **_WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 60},
    "vision_config": {**_TOWER, "image_size": 32, "patch_size": 8},
    "projection_dim": 16,
}

# Class of transformers -> type of model -> what its configuration has beside SMALL.
# Left out: yoso, whose derivative is a function of its own, of which no graph knows.
TEXT: Mapping[str, Mapping[str, Any]] = {
    "big_bird": {"attention_type": "original_full"}, "bloom": {}, "camembert": {},
    "canine": {"num_hash_buckets": 64, "num_hash_functions": 4}, "convbert": {"embedding_size": 32},
    "data2vec-text": {}, "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {
        "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8,
        "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3,
    },
    "electra": {}, "ernie": {},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 2, "token_dropout": False}, "eurobert": {},
    "flaubert": {}, "fnet": {"tpu_short_seq_length": 12},
    "funnel": {"num_hidden_layers": LEFT, "block_sizes": [1, 1], "d_head": 8, "d_inner": 48}, "gte": {},
    "ibert": {}, "layoutlm": {}, "lilt": {"hidden_size": 48}, "longformer": {"attention_window": [4, 4]},
    "luke": {"entity_vocab_size": 10, "entity_emb_size": 8}, "megatron-bert": {},
    "mobilebert": {"intra_bottleneck_size": 16, "true_hidden_size": 16},
    "modernbert": {"local_attention": 4, "global_attn_every_n_layers": 2}, "mpnet": {}, "mra": {},
    "nomic_bert": {}, "nystromformer": {"num_landmarks": 12, "segment_means_seq_len": 12}, "openai-gpt": {},
    "perceiver": {
        "num_latents": 6, "d_latents": 16, "num_blocks": 1, "num_self_attends_per_block": 1,
        "num_self_attention_heads": 2, "num_cross_attention_heads": 2,
    },
    "reformer": {
        "attn_layers": ["local", "local"], "axial_pos_embds": False, "local_attn_chunk_length": 4,
        "attention_head_size": 8, "feed_forward_size": 48,
    },
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 16}, "roberta": {},
    "roberta-prelayernorm": {}, "roc_bert": {"pronunciation_vocab_size": WORDS, "shape_vocab_size": WORDS},
    "roformer": {}, "squeezebert": {"embedding_size": 32},
    "tapas": {"type_vocab_sizes": [3, 8, 8, 2, 2, 4, 4]}, "xlm": {"emb_dim": 32}, "xlm-roberta": {},
    "xlm-roberta-xl": {}, "xlnet": {"max_position_embeddings": LEFT, "d_inner": 48, "d_head": 8},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip
UNMASKED = ("bloom", "canine", "modernbert")  # no number where a word may attend to none
_EXPERTS = {"norm_topk_prob": True}
_DEEPSEEK = {
    "head_dim": 4, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}  # fmt: skip
CAUSAL: Mapping[str, Mapping[str, Any]] = {
    "apertus": {}, "arcee": {},
    "bamba": {
        "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 4,
        "attn_layer_indices": [1],
    },
    "biogpt": {}, "bitnet": {}, "codegen": {}, "cohere": {},
    "cohere2": {"sliding_window": 4, "sliding_window_pattern": 2}, "ctrl": {"dff": 48},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10000.0},
    },
    "deepseek_v2": _DEEPSEEK, "deepseek_v3": _DEEPSEEK, "diffllama": {}, "doge": {}, "ernie4_5": {},
    "exaone4": {"sliding_window": 4},
    "falcon": {"head_dim": LEFT, "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon_h1": {
        "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64, "mamba_d_state": 8, "mamba_chunk_size": 4,
    },
    "falcon_mamba": {"state_size": 4, "time_step_rank": 2}, "gemma": {}, "gemma2": {"sliding_window": 4},
    "gemma3_text": {"sliding_window": 4},
    "gemma3n_text": {
        "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "laurel_rank": 4,
        "intermediate_size": [48, 48], "activation_sparsity_pattern": [0.5, 0.0],
    },
    "glm": {}, "glm4": {}, "glm4_moe": {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "gpt_bigcode": {}, "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gpt_neox": {}, "gpt_neox_japanese": {}, "gpt_oss": {"sliding_window": 4}, "gptj": {}, "granite": {},
    "granitemoe": {}, "granitemoeshared": {"shared_intermediate_size": 24},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
        "mamba_chunk_size": 4, "shared_intermediate_size": 24,
    },
    "helium": {}, "hunyuan_v1_dense": {},
    "jamba": {
        "mamba_d_state": 4, "mamba_dt_rank": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    "jetmoe": {"kv_channels": 8}, "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {"state_size": 4, "time_step_rank": 2},
    "mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "chunk_size": 4, "n_groups": 1},
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "block_size": 4},
    "ministral": {"sliding_window": 4}, "mistral": {"sliding_window": 4}, "mixtral": {},
    "modernbert-decoder": {"local_attention": 4}, "mpt": {}, "nanochat": {}, "nemotron": {},
    "olmo": {"clip_qkv": 8.0}, "olmo2": {}, "olmo3": {"sliding_window": 4}, "olmoe": {}, "persimmon": {},
    "phi": {"partial_rotary_factor": 0.5, "qk_layernorm": True}, "phi3": {}, "phimoe": {}, "qwen2_moe": {},
    "qwen3": {}, "qwen3_moe": _EXPERTS,
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    },
    "recurrent_gemma": {
        "lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"],
    },
    "rwkv": {"attention_hidden_size": 32}, "seed_oss": {}, "smollm3": {}, "stablelm": {}, "starcoder2": {},
    "vaultgemma": {"sliding_window": 4}, "xglm": {"attention_heads": 4},
    "xlstm": {"num_blocks": 2, "chunk_size": 4},
    "zamba2": {
        "mamba_d_state": 8, "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 16, "chunk_size": 4,
        "hybrid_layer_ids": [1], "layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1,
    },
}  # fmt: skip
TRANSLATED: Mapping[str, Mapping[str, Any]] = {
    "bart": {}, "bigbird_pegasus": {"attention_type": "original_full"}, "blenderbot": {},
    "blenderbot-small": {}, "fsmt": {"src_vocab_size": WORDS, "tgt_vocab_size": WORDS, "langs": ["en", "de"]},
    "led": {
        "attention_window": [4, 4], "max_encoder_position_embeddings": 32,
        "max_decoder_position_embeddings": 32,
    },
    "longt5": {"decoder_start_token_id": 2, "local_radius": 3}, "m2m_100": {}, "marian": {}, "mbart": {},
    "mt5": {}, "mvp": {}, "nllb-moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2}, "pegasus": {},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 2, "stagger_local_blocks": False}, "plbart": {},
    "prophetnet": {
        "num_hidden_layers": LEFT, "num_encoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "ngram": 2,
    },
    "switch_transformers": {
        "decoder_start_token_id": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1,
    },
    "umt5": {},
}  # fmt: skip
SPOKEN: Mapping[str, Mapping[str, Any]] = {
    "data2vec-audio": {**_WAVES, "conv_pos_kernel_size": 5}, "hubert": _WAVES,
    "sew": {**_WAVES, "squeeze_factor": 1}, "sew-d": {**_WAVES, "squeeze_factor": 1, "position_buckets": 8},
    "unispeech": _WAVES, "unispeech-sat": _WAVES,
    "wav2vec2-conformer": {**_WAVES, "conv_depthwise_kernel_size": 5},
    "wavlm": {**_WAVES, "num_buckets": 16, "max_bucket_distance": 20},
}  # fmt: skip
SEEN: Mapping[str, Mapping[str, Any]] = {
    "beit": {}, "bit": {"num_groups": 8, "embedding_size": 16, **_STAGES}, "clip": _TWO_TOWERS,
    "convnext": {**_STAGES, "num_hidden_layers": LEFT, "patch_size": 4},
    "convnextv2": {**_STAGES, "num_hidden_layers": LEFT, "patch_size": 4},
    "cvt": {"embed_dim": [16, 24, 32], "num_heads": [1, 2, 2], "depth": [1, 2, 3]}, "data2vec-vision": {},
    "deit": {}, "dinov2": {}, "dinov2_with_registers": {},
    "donut-swin": {
        "num_attention_heads": LEFT, "num_hidden_layers": LEFT, "num_layers": LEFT, "embed_dim": 16,
        "depths": [2, 1], "num_heads": [2, 2], "window_size": 2, "patch_size": 4,
    },
    "efficientnet": {"hidden_dim": 384, "width_coefficient": 0.3, "depth_coefficient": 0.3},
    "focalnet": {
        "embed_dim": 16, "depths": [1, 1], "hidden_sizes": [16, 32], "focal_levels": [2, 2],
        "focal_windows": [3, 3], "patch_size": 4,
    },
    "hgnet_v2": {},
    "hiera": {
        "num_query_pool": 2, "embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 1, 2],
        "image_size": [32, 32], "patch_size": [7, 7], "masked_unit_size": [4, 4],
    },
    "ijepa": {},
    "levit": {
        "image_size": 64, "hidden_sizes": [32, 48, 64], "depths": [1, 1, 1], "num_attention_heads": [2, 2, 2],
        "key_dim": [8, 8, 8], "patch_size": 16,
    },
    "mobilenet_v1": {"depth_multiplier": 0.25}, "mobilenet_v2": {"depth_multiplier": 0.35},
    "mobilevit": {
        "image_size": 64, "patch_size": 2, "hidden_sizes": [32, 40, 48],
        "neck_hidden_sizes": [8, 16, 24, 24, 32, 40, 64],
    },
    "mobilevitv2": {"image_size": 64, "patch_size": 2, "width_multiplier": 0.25},
    "poolformer": {"patch_size": 16, **_STAGES},
    "pvt": {
        "depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 1, 2, 2],
        "patch_sizes": [4, 2, 2, 2],
    },
    "pvt_v2": {
        "depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 1, 2, 2],
        "image_size": {"height": 32, "width": 32},
    },
    "regnet": {**_STAGES, "groups_width": 8}, "resnet": {"embedding_size": 16, **_STAGES},
    "segformer": {**_STAGES, "hidden_sizes": [16, 16, 32, 32], "num_attention_heads": [1, 1, 2, 2]},
    "siglip": _TWO_TOWERS,
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [16, 24, 32, 48], "image_size": 64},
    "swin": {
        "num_attention_heads": LEFT, "num_hidden_layers": LEFT, "num_layers": LEFT, "embed_dim": 16,
        "depths": [2, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 2,
    },
    "swinv2": {
        "num_attention_heads": LEFT, "num_hidden_layers": LEFT, "num_layers": LEFT, "embed_dim": 16,
        "depths": [2, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 2,
    },
    "textnet": {}, "vit_msn": {},
}  # fmt: skip
KINDS: Mapping[str, tuple[str, Mapping[str, Mapping[str, Any]], Mapping[str, Any], str]] = {
    "text": ("AutoModelForSequenceClassification", TEXT, WORDS_IN, "cross-entropy"),
    "causal": ("AutoModelForCausalLM", CAUSAL, LABELLED, "none"),
    "seq2seq": ("AutoModelForSeq2SeqLM", TRANSLATED, LABELLED, "none"),
    "audio": ("AutoModelForAudioClassification", SPOKEN, {"input_values": (400,)}, "cross-entropy"),
    "vision": ("AutoModelForImageClassification", SEEN, {"pixel_values": (3, 32, 32)}, "cross-entropy"),
}


def entries() -> dict[str, Entry]:
    """By name the model to train."""
    found = {}
    for auto, types, inputs, loss in KINDS.values():
        for kind, options in types.items():
            found[f"hf.{kind}"] = Entry(_maker(auto, kind, options), _sized(kind, inputs, options), loss=loss)
    return found


def _sized(kind: str, inputs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    side = options.get("image_size", 32)
    if "pixel_values" in inputs and isinstance(side, int):
        return {"pixel_values": (3, side, side)}
    if kind in UNMASKED:
        return {**inputs, "attention_mask": (WORDS_IN["attention_mask"][0], range(1, 2))}
    return inputs


def _maker(auto: str, kind: str, options: Mapping[str, Any]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        known = transformers.AutoConfig.for_model(kind)
        small = {n: v for n, v in SMALL.items() if hasattr(known, n)} | dict(options)
        given = {n: v for n, v in small.items() if v is not LEFT}
        config = transformers.AutoConfig.for_model(kind, **given)
        for part in (config, *(getattr(config, n, None) for n in ("text_config", "vision_config"))):
            for name, value in part.to_dict().items() if part is not None else ():
                if "drop" in name and isinstance(value, float):
                    setattr(part, name, 0.0)
                elif "drop" in name and isinstance(value, list):
                    setattr(part, name, [0.0] * len(value))
        config._experts_implementation = "batched_mm"  # the usual one has no kernel for doubles
        config.architectures = []  # of types that have several classes for a task
        model = getattr(transformers, auto).from_config(config, attn_implementation="eager")
        return own.ByName(model)

    return make
