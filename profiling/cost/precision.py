"""In which precision does a matrix kernel compute, by its name?"""

import re
from functools import lru_cache

# The first that is found counts: inputs' types before what a library's abbreviations imply. Tensile's names
# hold the types of inputs, outputs and computation (BBS: bf16 in and out, single for the sums).
_PATTERNS = (
    ("fp8", r"e4m3|e5m2|fp8|float8|_f8|qqtst|nvjet_qq"),
    ("bf16", r"bf16|bfloat16|\bCijk_\w*?_BB[SH]|\bCijk_\w*?_BS?S_B|nvjet_tst|nvjet_\w*bf"),
    ("fp16", r"fp16|half|[^a-z]f16|_h16816|h884|hgemm|h1688|hmma|hsh_|hhs_|\bCijk_\w*?_HH?S|nvjet_hs"),
    ("tf32", r"tf32|s1688"),
    ("fp32", r"sgemm|f32|float|scudnn|\bCijk_\w*?_S_?B|simt"),
    ("bf16", r"s16816|16816|wgmma"),
)
_TABLE = tuple((precision, re.compile(pattern, re.IGNORECASE)) for precision, pattern in _PATTERNS)


@lru_cache(maxsize=1 << 14)
def precision_in(name: str) -> str:
    """fp32, tf32, bf16, fp16 or fp8; "": the name does not say it."""
    return next((precision for precision, pattern in _TABLE if pattern.search(name)), "")
