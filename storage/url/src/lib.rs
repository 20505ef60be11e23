//! Owns: which object-store URLs an entry of `[store] urls` allows. Members, the ledger and workers all call it.
//!
//! Invariant: it compares only text, so every build decides alike. A URL that an entry allows is below that entry in
//! the store too: segments that a URL parser would rewrite are refused.
//! Absent: which of two spellings of one URL is the right one. An entry allows only its own spelling.

#![warn(missing_docs)]

/// Whether the entry `listed` allows `url`: the same URL, or one below it by whole path segments. A trailing slash
/// makes no difference. The part below may have no `.` or `..`, no empty segment, no query, and no character that is
/// percent-encoded or would have to be.
pub fn allows(listed: &str, url: &str) -> bool {
    if listed == url {
        return true;
    }
    let (Some((root, above)), Some((other_root, path))) = (split(listed), split(url)) else {
        return false;
    };
    if root != other_root {
        return false;
    }
    let Some(rest) = path.strip_prefix(above) else { return false };
    let below = |rest: &str| rest.split('/').all(is_plain) && !url.contains(['?', '#']);
    rest.is_empty() || rest.strip_prefix('/').is_some_and(below)
}

/// The scheme with the host, and the path without trailing slashes.
fn split(url: &str) -> Option<(&str, &str)> {
    let host = url.find("://")? + "://".len();
    let path = url[host..].find('/').map_or(url.len(), |slash| host + slash);
    Some((&url[..path], url[path..].trim_end_matches('/')))
}

/// Whether every URL parser leaves a path segment as it is.
fn is_plain(segment: &str) -> bool {
    let kept = |byte: u8| byte.is_ascii_graphic() && !br##"%\?#"<>`{}^"##.contains(&byte);
    !matches!(segment, "" | "." | "..") && segment.bytes().all(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_allows_itself_and_what_is_below_it_in_whole_segments() {
        for (listed, url) in [
            ("s3://bucket/a", "s3://bucket/a"),
            ("s3://bucket/a", "s3://bucket/a/"),
            ("s3://bucket/a/", "s3://bucket/a"),
            ("s3://bucket/a", "s3://bucket/a/b"),
            ("s3://bucket/a/", "s3://bucket/a/b/c_d=1~2"),
            ("s3://bucket", "s3://bucket/a"),
            ("s3://bucket/", "s3://bucket/a"),
            ("file:///", "file:///mnt/a"),
            ("file:///mnt/a%20b", "file:///mnt/a%20b/c"),
            ("file:///mnt/../srv", "file:///mnt/../srv"),
            ("anything", "anything"),
        ] {
            assert!(allows(listed, url), "{listed} {url}");
        }
    }

    #[test]
    fn a_url_allows_no_sibling_or_parent_in_any_spelling() {
        for (listed, url) in [
            ("s3://bucket/a", "s3://bucket"),
            ("s3://bucket/a", "s3://bucket/ab"),
            ("s3://bucket/a", "s3://bucket/b"),
            ("s3://bucket", "s3://bucket-b/a"),
            ("s3://bucket/a", "gs://bucket/a/b"),
            ("s3://bucket/a", "s3://user@bucket/a/b"),
            ("s3://bucket/a", "s3://bucket/a/b?c=d"),
            ("s3://bucket/a?c=d", "s3://bucket/a?c=d/b"),
            ("s3://bucket/a", "s3://bucket/a/b#c"),
            ("s3://bucket/a", "s3://bucket/a//b"),
            ("s3://bucket/a", "s3://bucket/a/b c"),
            ("file:///mnt/a", "file:///mnt/a/../b"),
            ("file:///mnt/a", "file:///mnt/a/./b"),
            ("file:///mnt/a", "file:///mnt/a/.."),
            ("file:///mnt/a", "file:///mnt/a/%2e%2e/b"),
            ("file:///mnt/a", "file:///mnt/a/..%2F..%2Fetc"),
            ("file:///mnt/a", "file:///mnt/a/..\\..\\etc"),
            ("file:///mnt/a", "file:///mnt/a/.\t./b"),
            ("file:///mnt/a", "file:///mnt/a/\u{e9}"),
            ("file:///mnt/a", "file://host/mnt/a/b"),
            ("file:///", "file://host/a"),
            ("file:///", "file:////a"),
            ("", "s3://bucket/a"),
            ("s3://bucket/a", ""),
            ("nothing", "nothing/below"),
        ] {
            assert!(!allows(listed, url), "{listed} {url}");
        }
    }
}
