"""Chat templates, rendered as Hugging Face `transformers` and vLLM render them.

The built-in engine and the gateway both use this package, each with its own copy of the model's files.
"""

from warmroute.chat_template.conversation import Conversation, ConversationError, MediaPart
from warmroute.chat_template.environment import ChatTemplateError
from warmroute.chat_template.template import ChatTemplate

__all__ = ["ChatTemplate", "ChatTemplateError", "Conversation", "ConversationError", "MediaPart"]
