//! Lists of objects, a page at a time.
//!
//! *Invariant:* a page begins after an id. Its length is bounded, and the error at the bound says it.

use crate::openai::error::ApiError;
use serde::{Deserialize, Serialize};

/// The parameters of a list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListParams {
    pub(super) after: Option<String>,
    limit: Option<String>,
    order: Option<String>,
    pub(super) purpose: Option<String>,
}

impl ListParams {
    /// How many objects to return: 1 to `max`.
    ///
    /// # Errors
    /// 400.
    pub(super) fn limit(&self, default: usize, max: usize) -> Result<usize, ApiError> {
        let Some(limit) = &self.limit else { return Ok(default) };
        let limit = limit.parse().ok().filter(|limit| (1..=max).contains(limit));
        limit.ok_or_else(|| ApiError::invalid("limit", format!("limit is 1 to {max}.")))
    }

    /// Whether the newest objects come first, which is the default.
    ///
    /// # Errors
    /// 400.
    pub(super) fn descending(&self) -> Result<bool, ApiError> {
        match self.order.as_deref() {
            None | Some("desc") => Ok(true),
            Some("asc") => Ok(false),
            Some(_) => Err(ApiError::invalid("order", "order is asc or desc.")),
        }
    }
}

/// A page.
#[derive(Serialize)]
pub(super) struct Page<T> {
    object: &'static str,
    data: Vec<T>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl<T> Page<T> {
    pub(super) fn new(data: Vec<T>, has_more: bool, id: impl Fn(&T) -> &str) -> Self {
        let of = |item: Option<&T>| item.map(|item| id(item).to_owned());
        let (first_id, last_id) = (of(data.first()), of(data.last()));
        Self { object: "list", data, first_id, last_id, has_more }
    }
}
