"""Models as people train them, small: what field_models.py exports and trains. Needs torch, torchvision, timm and
transformers; weights are random.

An entry says how to make the module, what one sample of each input looks like, and the loss. Word 0 and 1 pad in some
models: PyTorch gives them no gradient there, which ONNX cannot say, so they do not occur. Losses of "cross-entropy"
and "mse" are put behind the model by minbuild; with "none" the model's output is the loss, and labels are an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import field_layers as own
import field_memory as memory
import field_sequence as sequence
import field_vision as vision
import torch
from torch import nn

# torchvision built for another torch lacks these: they are declared, and never called.
try:
    import torchvision  # noqa: F401
except RuntimeError:
    for _name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

CLASSES, WORDS, LENGTH = 10, 61, 12
RGB = (3, 32, 32)


@dataclass(frozen=True)
class Entry:
    """A model to train. `inputs` gives the shape of one sample, and for integers their range."""

    make: Callable[[], nn.Module]
    inputs: Mapping[str, Any]
    loss: str = "cross-entropy"
    target: tuple[int, ...] = ()  # of one sample, for mse
    random: bool = False  # it draws random numbers: only the first loss is near PyTorch's
    opset: int = 17  # of the older exporter
    batch: int = 4
    seed: int = 3  # of the batches


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision import models

        return getattr(models, name)(weights=None, num_classes=CLASSES, **options)

    return make


def _timm(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)

    return make


def _plain(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Without what draws random numbers."""

    def plain() -> nn.Module:
        model = make()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if type(module).__name__ == "StochasticDepth":
                module.p = 0.0
        return model

    return plain


def _transformer(kind: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(**options)
        settings._attn_implementation = "eager"
        return own.ByName(getattr(transformers, kind)(settings))

    return make


def _image(shape: tuple[int, ...] = RGB) -> Mapping[str, Any]:
    return {"x": shape}


WORDS_IN = {"input_ids": ((LENGTH,), range(2, WORDS)), "attention_mask": ((LENGTH,), range(2))}
LABELLED = {"input_ids": ((LENGTH,), range(2, WORDS)), "labels": ((LENGTH,), range(2, WORDS))}
_BERT = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "num_labels": CLASSES,
    "max_position_embeddings": 32,
}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_LLAMA = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "use_cache": False,
    "pad_token_id": 0,
}

ZOO: Mapping[str, Entry] = {
    # torchvision
    "resnet18": Entry(_vision("resnet18"), _image()),
    "mobilenet_v2": Entry(_plain(_vision("mobilenet_v2", width_mult=0.35)), _image(), opset=13),
    "mobilenet_v3_small": Entry(_plain(_vision("mobilenet_v3_small", reduced_tail=True)), _image(), opset=14),
    "mobilenet_v3_dropout": Entry(
        _vision("mobilenet_v3_small", reduced_tail=True), _image(), random=True, opset=18
    ),
    "efficientnet_b0": Entry(_plain(_vision("efficientnet_b0", stochastic_depth_prob=0.0)), _image()),
    "efficientnet_depth": Entry(_vision("efficientnet_b0"), _image(), random=True),
    "shufflenet_v2": Entry(_vision("shufflenet_v2_x0_5"), _image(), opset=15),
    "squeezenet": Entry(_plain(_vision("squeezenet1_1")), _image((3, 64, 64)), opset=16),
    "densenet121": Entry(own.densenet, _image()),
    "googlenet": Entry(
        _plain(_vision("googlenet", aux_logits=False, init_weights=False)),
        _image((3, 64, 64)),
        opset=18,
        seed=4,  # with the usual one, two neighbours in the last pool differ by a tenth of a float's last bit
    ),
    "inception_v3": Entry(
        _plain(_vision("inception_v3", aux_logits=False, init_weights=False)), _image((3, 96, 96)), opset=19
    ),
    "convnext": Entry(_plain(own.convnext), _image(), opset=20),
    "vit": Entry(_plain(own.vit), _image(), opset=17),
    "swin": Entry(_plain(own.swin), _image((3, 64, 64)), opset=17),
    "regnet": Entry(_vision("regnet_y_400mf"), _image(), opset=13),
    "mnasnet": Entry(_plain(_vision("mnasnet0_5")), _image(), opset=14),
    "maxvit_like": Entry(_plain(own.attention_image), _image(), opset=18),
    # timm
    "mobilevit": Entry(_timm("mobilevit_xxs"), _image((3, 64, 64))),
    "ghostnet": Entry(_timm("ghostnet_050", drop_rate=0.0), _image((3, 64, 64))),
    "mixer": Entry(own.mixer, _image((3, 64, 64)), opset=15),
    "resmlp": Entry(own.resmlp, _image((3, 64, 64)), opset=16),
    "repvgg": Entry(_timm("repvgg_a0"), _image(), opset=17),
    "fastvit": Entry(_timm("mobileone_s0"), _image(), opset=17),
    "edgenext": Entry(_timm("edgenext_xx_small"), _image((3, 64, 64)), opset=17),
    "levit": Entry(_timm("levit_conv_128s", img_size=64), _image((3, 64, 64)), opset=17),
    # transformers
    "bert": Entry(_transformer("BertForSequenceClassification", "BertConfig", **_BERT, **_STILL), WORDS_IN),
    "bert_dropout": Entry(
        _transformer("BertForSequenceClassification", "BertConfig", **_BERT), WORDS_IN, random=True
    ),
    "distilbert": Entry(
        _transformer(
            "DistilBertForSequenceClassification",
            "DistilBertConfig",
            vocab_size=WORDS,
            dim=32,
            n_layers=2,
            n_heads=2,
            hidden_dim=48,
            max_position_embeddings=32,
            dropout=0.0,
            attention_dropout=0.0,
            seq_classif_dropout=0.0,
            num_labels=CLASSES,
        ),
        WORDS_IN,
        opset=14,
    ),
    "albert": Entry(
        _transformer(
            "AlbertForSequenceClassification",
            "AlbertConfig",
            **_BERT,
            **_STILL,
            embedding_size=16,
            classifier_dropout_prob=0.0,
        ),
        WORDS_IN,
        opset=15,
    ),
    "gpt2": Entry(
        _transformer(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=WORDS,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=32,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        ),
        LABELLED,
        loss="none",
    ),
    "opt": Entry(
        _transformer(
            "OPTForCausalLM",
            "OPTConfig",
            vocab_size=WORDS,
            hidden_size=32,
            ffn_dim=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            word_embed_proj_dim=32,
            max_position_embeddings=32,
            dropout=0.0,
            attention_dropout=0.0,
            use_cache=False,
        ),
        LABELLED,
        loss="none",
        opset=18,
    ),
    "llama": Entry(_transformer("LlamaForCausalLM", "LlamaConfig", **_LLAMA), LABELLED, loss="none"),
    "qwen2": Entry(
        _transformer("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA), LABELLED, loss="none", opset=18
    ),
    "t5": Entry(
        _transformer(
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=WORDS,
            d_model=32,
            d_kv=16,
            d_ff=48,
            num_layers=2,
            num_heads=2,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            use_cache=False,
        ),
        LABELLED,
        loss="none",
    ),
    "whisper": Entry(
        _transformer(
            "WhisperForAudioClassification",
            "WhisperConfig",
            d_model=32,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_layers=1,
            decoder_attention_heads=2,
            decoder_ffn_dim=48,
            num_mel_bins=16,
            max_source_positions=30,
            vocab_size=WORDS,
            classifier_proj_size=16,
            num_labels=CLASSES,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        ),
        {"input_features": (16, 60)},
        opset=16,
    ),
    "wav2vec2": Entry(
        _transformer(
            "Wav2Vec2ForSequenceClassification",
            "Wav2Vec2Config",
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            conv_dim=(16, 16),
            conv_stride=(5, 2),
            conv_kernel=(10, 3),
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=4,
            hidden_dropout=0.0,
            activation_dropout=0.0,
            attention_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            layerdrop=0.0,
            apply_spec_augment=False,
            mask_time_prob=0.0,
            classifier_proj_size=16,
            num_labels=CLASSES,
        ),
        {"input_values": (400,)},
    ),
    "hf_vit": Entry(
        _transformer(
            "ViTForImageClassification",
            "ViTConfig",
            image_size=32,
            patch_size=8,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=48,
            num_labels=CLASSES,
            **_STILL,
        ),
        {"pixel_values": RGB},
        opset=18,
    ),
    # one's own
    "lstm": Entry(lambda: own.Recurrent("LSTM", False), {"x": (LENGTH, 8)}),
    "gru": Entry(lambda: own.Recurrent("GRU", False), {"x": (LENGTH, 8)}, opset=14),
    "rnn": Entry(lambda: own.Recurrent("RNN", False), {"x": (LENGTH, 8)}, opset=15),
    "bilstm": Entry(lambda: own.Recurrent("LSTM", True), {"x": (LENGTH, 8)}, opset=18),
    "bigru": Entry(lambda: own.Recurrent("GRU", True), {"x": (LENGTH, 8)}, opset=20),
    "text_lstm": Entry(own.TextLstm, {"x": ((LENGTH,), range(2, WORDS))}),
    "autoencoder": Entry(own.autoencoder, _image((1, 16, 16)), loss="mse", target=(1, 16, 16)),
    "unet": Entry(own.UNet, _image((3, 32, 32)), loss="mse", target=(2, 32, 32), opset=16),
    "tcn": Entry(own.Tcn, {"x": (8, 40)}, opset=13),
    "dscnn": Entry(own.dscnn, _image((1, 49, 10)), opset=13),
    "triplet": Entry(own.Triplet, {"anchor": (16,), "near": (16,), "far": (16,)}, loss="none"),
    "siamese": Entry(own.Siamese, {"a": (1, 16, 16), "b": (1, 16, 16), "same": ((), range(2))}, loss="none"),
    "vae": Entry(own.Vae, {"x": (32,), "noise": (4,)}, loss="none", opset=18),
    "vae_random": Entry(own.VaeRandom, {"x": (32,)}, loss="none", random=True, opset=18),
    "dlrm": Entry(own.Dlrm, {"dense": (13,), "sparse": ((3, 4), range(20))}, opset=18),
    "deepar": Entry(own.DeepAr, {"series": (LENGTH, 3), "wanted": (LENGTH,)}, loss="none"),
    "pointnet": Entry(own.PointNet, {"x": (3, 64)}),
    "gcn": Entry(own.Gcn, {"x": (12, 8)}, opset=18),
    "policy": Entry(
        own.Policy, {"state": (6,), "action": ((), range(4)), "gain": (), "advantage": ()}, loss="none"
    ),
    "super_resolution": Entry(own.super_resolution, _image((1, 16, 16)), loss="mse", target=(1, 48, 48)),
    "yolo": Entry(
        own.Yolo, {"x": RGB, "boxes": (5, 4, 4), "classes": ((4, 4), range(6))}, loss="none", opset=18
    ),
    "focal": Entry(own.Focal, {"x": (16,), "label": ((), range(CLASSES))}, loss="none", opset=17),
    "distillation": Entry(
        own.Distillation, {"x": (16,), "label": ((), range(CLASSES))}, loss="none", opset=17
    ),
    "arcface": Entry(own.ArcFace, {"x": RGB, "label": ((), range(CLASSES))}, loss="none", opset=17),
    "contrastive": Entry(own.Contrastive, {"a": RGB, "b": RGB}, loss="none", opset=17),
    "mha": Entry(own.encoder, {"x": (LENGTH, 16)}, opset=17),
    "mha_dropout": Entry(lambda: own.encoder(0.1), {"x": (LENGTH, 16)}, random=True, opset=18),
    "film": Entry(own.Film, {"x": (3, 16, 16), "condition": (5,)}, opset=17),
    "upsampler": Entry(own.Upsampler, _image((3, 8, 8)), loss="mse", target=(1, 32, 32), opset=17),
    "normals": Entry(own.Norms, _image((8, 12, 12)), opset=17),
    "activations": Entry(own.activations, {"x": (16,)}, opset=17),
    "nhwc": Entry(own.Nhwc, {"x": (16, 16, 3)}, opset=13),
    "conv3d": Entry(own.conv3d, {"x": (1, 8, 8, 8)}, opset=17),
    "tabular": Entry(own.Tabular, {"numbers": (6,), "kinds": ((3,), range(9))}, opset=17),
    "mixture": Entry(own.Mixture, {"x": (16,)}, opset=17),
    "matrix_factors": Entry(
        own.MatrixFactors,
        {"user": ((), range(20)), "item": ((), range(30)), "rating": ()},
        loss="none",
        opset=15,
    ),
    "ctc_like": Entry(own.Spectrogram, {"x": (160,)}, opset=17),
    "crf_like": Entry(
        own.Tagger, {"x": ((LENGTH,), range(2, WORDS)), "tags": ((LENGTH,), range(5))}, loss="none"
    ),
    "efficientformer": Entry(vision.EfficientFormer, {"x": RGB}),
    "window_attention": Entry(vision.WindowAttention, {"x": RGB}),
    "detr": Entry(vision.Detr, {"x": RGB, "kinds": ((5,), range(4)), "boxes": (5, 4)}, loss="none", opset=18),
    "nerf": Entry(vision.Nerf, {"origin": (3,), "direction": (3,), "wanted": (3,)}, loss="none"),
    "spatial_transformer": Entry(vision.SpatialTransformer, _image((1, 16, 16))),
    "involution": Entry(vision.Involution, _image((3, 16, 16)), opset=18),
    "capsules": Entry(vision.Capsules, _image((1, 14, 14)), opset=18),
    "attended": Entry(vision.Attended, _image((3, 8, 8)), opset=18),
    "hyper": Entry(vision.Hyper, _image((3, 10, 10)), opset=18),
    "keypoints": Entry(vision.Keypoints, {"x": (1, 16, 16), "wanted": (4, 2)}, loss="none"),
    "segmented": Entry(
        vision.Segmented, {"x": (1, 16, 16), "mask": ((16, 16), range(3))}, loss="none", opset=18
    ),
    "conformer": Entry(sequence.Conformer, {"x": (31, 16)}, opset=18),
    "wavenet": Entry(sequence.Wavenet, {"x": (20,), "wanted": ((20,), range(16))}, loss="none"),
    "gru_vae": Entry(sequence.GruVae, {"x": ((8,), range(WORDS)), "noise": (4,)}, loss="none"),
    "experts": Entry(sequence.Experts, {"x": (5, 8), "wanted": ((), range(CLASSES))}, loss="none", opset=18),
    "rotary": Entry(
        sequence.Rotary, {"x": ((8,), range(WORDS)), "labels": ((8,), range(WORDS))}, loss="none"
    ),
    "ctc": Entry(sequence.Ctc, {"x": (8, 8), "labels": ((3,), range(1, 6))}, loss="none", opset=18),
    "clip": Entry(sequence.Clip, {"image": (12,), "text": ((5,), range(WORDS))}, loss="none", opset=18),
    "embedding_bag": Entry(sequence.Bag, {"x": ((5,), range(WORDS))}, opset=18),
    "gat": Entry(
        sequence.Gat, {"x": (6, 6), "origin": ((14,), range(6)), "end": ((14,), range(6))}, opset=18
    ),
    "linear_attention": Entry(sequence.Linear, {"x": (7, 8)}),
    "fourier": Entry(sequence.Fourier, {"x": (7, 6)}),
    "flow": Entry(sequence.Flow, {"x": (6,)}, loss="none"),
    "splines": Entry(sequence.Splines, {"x": (6,)}),
    "ode": Entry(memory.Ode, {"x": (6,)}),
    "slots": Entry(memory.Slots, {"x": (7, 6)}),
    "sparsemax": Entry(memory.Sparsemax, {"x": (8,)}),
    "turing": Entry(memory.Turing, {"x": (4, 6)}),
    "mined": Entry(memory.Mined, {"x": (8,), "kind": ((), range(2))}, loss="none", opset=18),
    "chosen": Entry(memory.Chosen, {"x": (6, 8)}, loss="none"),
    "padded": Entry(memory.Padded, {"x": ((6,), range(20)), "memory": (5, 8)}, loss="none"),
    "odd": Entry(memory.Odd, {"x": (2, 14)}, opset=18),
    "retentive": Entry(memory.Retentive, {"x": (12, 6)}),
}
