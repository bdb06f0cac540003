"""ComfyUI's HTTP interface as a part of a server: prompts, their queue and history, files, events, and products."""
