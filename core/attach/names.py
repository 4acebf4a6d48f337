"""The names under which serving engines export what this product asks for.

vLLM, SGLang, trtllm-serve (its Prometheus page) and Triton's TensorRT-LLM backend, by their documentation.
"""

from __future__ import annotations

# Our word -> names by which servers export it, the preferred one first ("_total" is tried by itself).
GAUGES: dict[str, tuple[str, ...]] = {
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "num_requests_running",
        "trtllm:num_requests_running",
        "trtllm_num_requests_running",
        "nv_trt_llm_request_metrics{request_type=scheduled}",
        "nv_trt_llm_request_metrics{request_type=active}",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "num_requests_waiting",
        "trtllm:num_requests_waiting",
        "trtllm_num_requests_waiting",
        "nv_trt_llm_request_metrics{request_type=waiting}",
    ),
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "trtllm:kv_cache_utilization",
        "trtllm_kv_cache_utilization",
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
    ),
    "cache_hit_rate": ("sglang:cache_hit_rate", "trtllm:kv_cache_hit_rate", "trtllm_kv_cache_hit_rate"),
    "seats": ("trtllm_max_batch_size_runtime", "nv_trt_llm_request_metrics{request_type=max}"),
    "budget_tokens": ("trtllm_max_num_tokens_runtime",),
    "block_tokens": ("trtllm_kv_cache_tokens_per_block", "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
    "pool_blocks": ("trtllm_kv_cache_max_blocks", "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
    "used_blocks": ("trtllm_kv_cache_used_blocks", "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=used}"),
}
COUNTERS: dict[str, tuple[str, ...]] = {
    "preemptions": ("vllm:num_preemptions", "sglang:num_retracted_requests"),
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": (
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits",
        "sglang:cached_tokens",
        "trtllm_prompt_cached_tokens",
    ),
    "prompt_tokens": ("vllm:prompt_tokens", "sglang:prompt_tokens", "trtllm_prompt_tokens"),
    "generation_tokens": ("vllm:generation_tokens", "sglang:generation_tokens", "trtllm_generation_tokens"),
    "finished": (
        "vllm:request_success",
        "sglang:num_requests",
        "trtllm:request_success",
        "trtllm_request_success",
        "nv_inference_request_success",
    ),
    "flops": ("vllm:estimated_flops_per_gpu", "sglang:estimated_flops_per_gpu"),
    "read_bytes": ("vllm:estimated_read_bytes_per_gpu", "sglang:estimated_read_bytes_per_gpu"),
    "write_bytes": ("vllm:estimated_write_bytes_per_gpu", "sglang:estimated_write_bytes_per_gpu"),
}
HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "iteration_tokens": ("vllm:iteration_tokens_total", "vllm:iteration_tokens"),
    "ttft": (
        "vllm:time_to_first_token_seconds",
        "sglang:time_to_first_token_seconds",
        "trtllm:time_to_first_token_seconds",
        "trtllm_time_to_first_token_seconds",
    ),
    "itl": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
        "trtllm:time_per_output_token_seconds",
        "trtllm_time_per_output_token_seconds",
    ),
    "e2e": (
        "vllm:e2e_request_latency_seconds",
        "sglang:e2e_request_latency_seconds",
        "trtllm:e2e_request_latency_seconds",
        "trtllm_e2e_request_latency_seconds",
    ),
    "queue": (
        "vllm:request_queue_time_seconds",
        "sglang:queue_time_seconds",
        "trtllm:request_queue_time_seconds",
        "trtllm_request_queue_time_seconds",
    ),
    "prompt_length": ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram"),
    "output_length": ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram"),
}
SHARES = ("kv_usage", "cache_hit_rate")
"""Words whose value is a share: several engines behind one page are averaged, not added."""
OF_ONE_ENGINE = ("seats", "budget_tokens", "block_tokens", "pool_blocks", "used_blocks")
"""Words that describe one engine: averaged over several."""
KINDS = {
    "nv_trt_llm_request_metrics": "request_type",
    "nv_trt_llm_kv_cache_block_metrics": "kv_cache_block_type",
}
"""Metrics that hold several figures, told apart by this label; written here as name{label=value}."""
PREFIXES = {"vllm": ("vllm:", "vllm_"), "sglang": ("sglang:", "sglang_"), "trtllm": ("trtllm:", "trtllm_", "nv_trt_llm_")}
INFO = ("vllm:cache_config_info", "sglang:cache_config_info")
