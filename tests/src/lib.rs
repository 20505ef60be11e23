//! Cross-crate and multi-process tests
