"""The embedded engine behind HTTP: SGLang's native routes and OpenAI's chat completions."""
