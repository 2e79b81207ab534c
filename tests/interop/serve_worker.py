"""`transformers` as a command that knows our language model: it takes classes from transformers' own namespace."""

import transformers
from transformers.cli.transformers import main

from hf_efficient import CompressivePerformerForCausalLM

transformers.CompressivePerformerForCausalLM = CompressivePerformerForCausalLM
main()
