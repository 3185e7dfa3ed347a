"""How the examples of rules about modules are put together from their telling lines. It holds no rule."""


def with_body(head: str, body: str) -> str:
    """The source of a module that ends with `def forward(…):` (`head`), and the lines of that forward."""
    return head + "".join(f"        {line}\n" for line in body.splitlines())


def in_module(head: str, init: str, forward: str) -> str:
    """The source of a module `Net` after the imports in `head`, with these lines in `__init__` and in `forward(x)`."""
    start = with_body(f"{head}class Net(nn.Module):\n    def __init__(self):\n", f"super().__init__()\n{init}")
    return with_body(f"{start}\n    def forward(self, x):\n", forward)
