"""Tests of torch programs as users write them begin as those of their capture do."""

from __future__ import annotations

from tests.capture.torch.conftest import fresh_dynamo as fresh_dynamo
