import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two workers of two threads each are many times slower than of one."""
    torch.set_num_threads(1)
