"""Files of visitors: uploads, as they were sent, and nothing else."""

import gradio as gr


def path_of(payload) -> str | None:
    """The upload's file, unopened. In place of an image's `preprocess`: so what is no image is told in our words."""
    if payload is None:
        return None
    if not payload.path:
        raise gr.Error("This is no uploaded image.", print_exception=False)
    return payload.path


def only_uploads(block: gr.blocks.Block) -> None:
    """Gradio would fetch a file whose path is an address: a request made by hand could send this machine anywhere."""
    store = getattr(block, "async_move_resource_to_block_cache", None)
    if store is None:
        return

    async def refuse_addresses(place):
        if "://" in str(place):
            raise gr.Error("Upload the image: addresses are not fetched.", print_exception=False)
        return await store(place)

    block.async_move_resource_to_block_cache = refuse_addresses
