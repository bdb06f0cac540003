"""One resident model against two: reason, then generate video with sound, here and with transformers and diffusers.

    time_ratio          this engine's time for one omni request over transformers' answer and diffusers' video, in turn
    weight_bytes_ratio  bytes of weights here over those of the two models
    duplicate_bytes     bytes of weights that are here twice: storages that are equal, or that two tensors begin
    ttft_steps          denoise steps that end between a question, asked in a long denoise, and its answer's first text
    ar_batch_gain       tokens a second of eight answers together over those of one after another

The model has about 52 million random parameters in float32. Both sides get the same prompt, seed, size, steps, guidance
and number of tokens, and end with frames and sound in memory; loading is not timed. Before anything is timed, the
thoughts must be the same tokens on both sides, and the video the one that diffusers makes of prompt and thoughts.
"""

from __future__ import annotations

import gc
import hashlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from diffusers import Cosmos3OmniPipeline
from transformers import Cosmos3OmniForConditionalGeneration

from _common import interleaved, make_parser, ratio, report
from fastvideo_core import Engine
from fastvideo_core.request.base import Request
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.allocator import keep_freed_memory
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_cosmos3.testing import write_checkpoint

PROMPT = "a robot arm lifts a red cup and puts it on the shelf"
QUESTIONS = [f"What happens when cup {index} falls?" for index in range(8)]
SEED = 7
MODEL: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 1536, "rope_axes_dim": [16, 8, 8],
}  # fmt: skip
SIZE = {"num_frames": 17, "height": 128, "width": 128}
DENOISING = {**SIZE, "num_inference_steps": 8, "guidance_scale": 6.0}
NUM_TOKENS = 32
LONG_STEPS = 24


class Sides:
    """Both implementations, on the same weights.

    Args:
        scratch: Where checkpoints are written: for diffusers a folder a component, for transformers one flat file.
    """

    def __init__(self, scratch: Path) -> None:
        folder = write_checkpoint(scratch / "omni", **MODEL)
        flat = write_checkpoint(scratch / "flat", layout="flat", **MODEL)
        self.engine = Engine.open(Catalog.installed().read_folder(folder), device="cpu", max_running=16)
        self.reasoner = Cosmos3OmniForConditionalGeneration.from_pretrained(flat, dtype=torch.float32).eval()
        self.pipeline = Cosmos3OmniPipeline.from_pretrained(
            str(folder), torch_dtype=torch.float32, enable_safety_checker=False
        )
        self.pipeline.set_progress_bar_config(disable=True)
        self.ids = self._prompt_ids()

    def ours(self, *, exact: bool = False, outputs: tuple[str, ...] = ("video",)) -> Any:
        """Think, then generate, in one request."""
        request = build_request(
            self.engine.card, PROMPT, task="omni", outputs=outputs, exact=exact,
            parameters={**DENOISING, "seed": SEED, "max_tokens": NUM_TOKENS},
        )  # fmt: skip
        return self.engine.submit(request).result()

    def theirs(self) -> Any:
        """Think with one model, then generate with the other."""
        self.think()
        return self.pipeline(
            PROMPT, generator=torch.Generator().manual_seed(SEED), enable_sound=True, output_type="np", **DENOISING
        )

    def think(self) -> list[int]:
        """Return the thoughts of transformers."""
        with torch.no_grad():
            written = self.reasoner.generate(
                torch.tensor([self.ids]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=self._end[0]
            )
        tokens: list[int] = written[0, len(self.ids) :].tolist()
        return tokens

    def check(self) -> dict[str, float]:
        """Raise unless both sides think and make the same."""
        made = self.ours(exact=True, outputs=("latents", "text"))
        thoughts = self.think()
        if list(made.artifacts["text"].token_ids) != thoughts:
            raise SystemExit("the thoughts differ")
        negative = self.pipeline.tokenize_prompt(PROMPT, None, **SIZE)[1]
        end = self._end[1:] if thoughts[-1] == self._end[0] else self._end
        tokenize = self.pipeline.tokenize_prompt
        self.pipeline.tokenize_prompt = lambda *_, **__: ([*self.ids, *thoughts, *end], negative)
        expected = self.pipeline(
            PROMPT, generator=torch.Generator().manual_seed(SEED), enable_sound=True, output_type="latent", **DENOISING
        ).video[0]
        self.pipeline.tokenize_prompt = tokenize
        found = torch.from_numpy(made.latents.latents)
        error = float((found - expected).abs().max() / expected.abs().max())
        if error > 1e-5:
            raise SystemExit(f"the latents differ by {error}")
        return {"latents_error": error}

    def weights(self) -> dict[str, float]:
        """Count the bytes of weights on both sides, and those that are here twice."""
        names = ("transformer", "vae", "sound_tokenizer", "vision_encoder")
        here = [tensor for name in names for tensor in self.engine.instance.component(name).parameters()]
        parts = (self.reasoner, self.pipeline.transformer, self.pipeline.vae, self.pipeline.sound_tokenizer)
        there = sum(tensor.nbytes for part in parts for tensor in part.parameters())
        places: dict[int, int] = {}
        contents: dict[str, int] = {}
        duplicates = 0
        for tensor in here:
            place, size = tensor.untyped_storage().data_ptr(), tensor.nbytes
            digest = hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().data).hexdigest()
            duplicates += size if place in places or digest in contents else 0
            places[place], contents[digest] = size, size
        return {
            "weight_bytes_ratio": self.engine.instance.num_bytes / there,
            "weight_bytes": self.engine.instance.num_bytes,
            "duplicate_bytes": duplicates,
        }

    def first_text_steps(self) -> int:
        """Ask in the middle of a long denoise; return the denoise steps that end before the answer's first text."""
        steps: list[float] = []
        long = build_request(
            self.engine.card, PROMPT, task="text_to_video", outputs=("latents",),
            parameters={**DENOISING, "num_inference_steps": LONG_STEPS, "seed": SEED},
        )  # fmt: skip

        def note(event: Any) -> None:
            if event.type == "request.progress" and event.node == "denoise":
                steps.append(event.time_s)

        running = self.engine.submit(long, on_event=note)
        while len(steps) < 4:
            time.sleep(0.001)
        before = len(steps)
        first: list[int] = []

        def look(event: Any) -> None:
            if event.type == "text.delta" and not first:
                first.append(len(steps))

        self.engine.submit(self._question(QUESTIONS[0], 8, latency_class="interactive"), on_event=look).result()
        running.result()
        return first[0] - before

    def together(self) -> None:
        """Answer all questions at once."""
        for handle in [self.engine.submit(self._question(text, NUM_TOKENS)) for text in QUESTIONS]:
            handle.result()

    def one_by_one(self) -> None:
        """Answer one question after another."""
        for text in QUESTIONS:
            self.engine.submit(self._question(text, NUM_TOKENS)).result()

    def _question(self, text: str, num_tokens: int, **settings: Any) -> Request:
        parameters = {"max_tokens": num_tokens, "seed": SEED}
        return build_request(self.engine.card, text, task="reasoning_text", parameters=parameters, **settings)

    def _prompt_ids(self) -> list[int]:
        """Return the tokens that both sides think about: those of the pipeline, up to where an answer begins."""
        prompt = self.pipeline.tokenize_prompt(PROMPT, None, **SIZE)[0]
        self._end = prompt[-2:]
        return list(prompt[:-2])


def measure(sides: Sides, num_rounds: int) -> dict[str, float]:
    """Time both sides in turn, then questions beside a denoise, then answers together."""
    times = interleaved({"one": sides.ours, "two": sides.theirs}, num_rounds=num_rounds)
    answers = interleaved({"together": sides.together, "alone": sides.one_by_one}, num_rounds=num_rounds)
    return {
        "time_ratio": ratio(times, "one", "two"),
        "two_models_s": statistics.median(times["two"]),
        "ttft_steps": max(sides.first_text_steps() for _ in range(num_rounds)),
        "ar_batch_gain": 1 / ratio(answers, "together", "alone"),
        "one_by_one_s": statistics.median(answers["alone"]),
    }


def main() -> None:
    """Measure and print."""
    args = make_parser(__doc__.splitlines()[0], num_rounds=5).parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as scratch:
        sides = Sides(Path(scratch))
        figures = {**sides.check(), **sides.weights(), **measure(sides, args.rounds)}
        sides.engine.close()
        gc.collect()
    figures["num_threads"] = torch.get_num_threads()
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
