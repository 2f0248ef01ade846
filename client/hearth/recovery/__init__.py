"""Recovery: notices that an attachment has lost something without a word, and has it taken up again.

Owns no connection and no thread that stays. Above: `hearth.attachment`, which is watched; below: `hearth.errors`.
"""
