"""Documentation as text: pages made from the classes that hold it.

One source serves `gradproof explain`, the docs folder, the web pages and SARIF help. This module must not know
terminals, HTML or HTTP.
"""

from __future__ import annotations

from services.documentation.pages import check_page, rule_page, rules_table

__all__ = ["check_page", "rule_page", "rules_table"]
