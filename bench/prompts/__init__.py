"""What a prompt costs on its way to keys: parsing, template, tokens, hashes; new prompts and further turns.

Each figure stands beside `transformers.apply_chat_template` on the same chats in the same run. `bench.prompts.run` is
the command.
"""

from bench.prompts.run import main

__all__ = ["main"]
