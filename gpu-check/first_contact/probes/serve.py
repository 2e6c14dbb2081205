"""Serves a decoder of 0.7 B parameters with random weights: tokens a second for 1 and 8 requests, and for reading prompts."""

import time

from vgpu_check.probes import talk
from vgpu_check.probes.torch_fill import charged, torch_or_skip

# name, requests at once; `read` has prompts of 1,024 tokens and is bound by the GPU.
LOADS = (("decode 1", 1), ("decode 8", 8), ("read 8", 8))
NEW, PROMPT, SHORT, VOCABULARY = 128, 1024, 32, 32000


def model(torch, transformers):
    width = 2048
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=16,
        num_attention_heads=16, num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=2048)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return transformers.LlamaForCausalLM(config).eval()


def main(seconds):
    torch = torch_or_skip()
    try:
        import transformers
    except ImportError as error:
        raise talk.Skip(str(error))
    decoder = model(torch, transformers)
    talk.figures(parameters=sum(one.numel() for one in decoder.parameters()))

    def work(load, requests):
        given = torch.randint(5, VOCABULARY, (requests, PROMPT if load.startswith("read") else SHORT), device="cuda")
        if load.startswith("read"):
            decoder(given, use_cache=False, logits_to_keep=1)
            return given.numel()
        more = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        made = decoder.generate(given, attention_mask=torch.ones_like(given), **more)
        return made.numel() - given.numel()

    with torch.inference_mode():
        for load in LOADS:
            work(*load)
        torch.cuda.synchronize()
        for load in LOADS:
            talk.step(load[0], charged=charged(torch))  # side by side, all begin together
            start, tokens = time.perf_counter(), 0
            while time.perf_counter() < start + float(seconds):
                tokens += work(*load)
                torch.cuda.synchronize()
            talk.figures(**{load[0]: tokens / (time.perf_counter() - start)})
