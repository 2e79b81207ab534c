"""Share models: push a folder or a model to the Hub, pull one at a pinned revision, verify both.

hub.push("runs/cifar10", "me/kerformer-vit", private=True, tag="v1")
folder = hub.pull("me/kerformer-vit", revision="v1")
AutoModelForImageClassification.from_pretrained(folder)
"""

from .client import Call, HubError, scrub
from .contents import LEFT_OUT
from .transfer import Push, create, pull, push, verify

__all__ = ["LEFT_OUT", "Call", "HubError", "Push", "create", "pull", "push", "scrub", "verify"]
