"""Messages of torchao's import that tell nobody anything who does not use torchao.

transformers imports torchao wherever it is installed. torchao then lists its CUDA kernels that can't be loaded here,
and torch says that torchao calls what will be removed.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

UNWANTED = {  # logger -> what its messages contain
    "torchao": ("Failed to load", "Skipping import of cpp extensions"),
    "torch.utils._pytree": ("is an Enum subclass",),
}


@contextmanager
def torchao_kept_quiet() -> Iterator[None]:
    """Drops those messages until the block ends. Where logging has been set up, it is left alone."""
    if logging.getLogger().handlers:
        yield
        return
    filters = [(logging.getLogger(name), _Without(texts)) for name, texts in UNWANTED.items()]
    for logger, unwanted in filters:
        logger.addFilter(unwanted)
    try:
        yield
    finally:
        for logger, unwanted in filters:
            logger.removeFilter(unwanted)


class _Without(logging.Filter):
    def __init__(self, texts: tuple[str, ...]):
        super().__init__()
        self.texts = texts

    def filter(self, record: logging.LogRecord) -> bool:
        return not any(text in record.getMessage() for text in self.texts)
