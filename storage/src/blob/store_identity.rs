//! Owns: whether two URLs name one object store.
//!
//! Invariant: stores with different objects never count as the same; one store under two host names is not recognized.
//! Absent: which stores a process may open; members and workers have lists of those.

use url::Url;

/// Whether two URLs name the same store. A trailing slash and other spellings of one URL make no difference.
pub fn same_store(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    match (Url::parse(one), Url::parse(other)) {
        (Ok(one), Ok(other)) => parts(&one) == parts(&other),
        _ => false,
    }
}

fn parts(url: &Url) -> (&str, &str, &str, Option<&str>, Option<&str>) {
    let path = url.path().trim_end_matches('/');
    (url.scheme(), url.authority(), path, url.query(), url.fragment())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_url_are_one_store_and_no_other_is() {
        for (one, other) in [
            ("s3://bucket/work", "s3://bucket/work"),
            ("s3://bucket/work", "s3://bucket/work/"),
            ("s3://bucket", "s3://bucket/"),
            ("file:///srv/store", "file:///srv/store/"),
            ("file:///srv/store", "file://localhost/srv/./store"),
            ("", ""),
        ] {
            assert!(same_store(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("s3://bucket/work", "s3://bucket/work/x"),
            ("s3://bucket/work", "s3://bucket/works"),
            ("s3://bucket/work", "gs://bucket/work"),
            ("s3://bucket/work", "s3://other/work"),
            ("s3://bucket/work", "s3://user@bucket/work"),
            ("s3://bucket/work", "s3://bucket/work?a=b"),
            ("s3://bucket/work", ""),
            ("nothing", "other"),
        ] {
            assert!(!same_store(one, other), "{one} {other}");
        }
    }
}
