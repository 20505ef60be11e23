//! A directory's identity is written once, and then guards the directory.

use rollout_storage::{Identity, StorageError};

fn identity(member_id: u64) -> Identity {
    Identity { cluster_id: "c-1".to_owned(), member_id, name: "a".to_owned() }
}

#[test]
fn an_identity_is_kept_and_another_one_is_refused_with_both_values() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("not/yet/there");
    assert_eq!(Identity::load(&root).unwrap(), None);
    identity(u64::MAX).create(&root).unwrap();
    assert_eq!(Identity::load(&root).unwrap(), Some(identity(u64::MAX)));
    identity(u64::MAX).create(&root).unwrap();
    let error = identity(3).create(&root).unwrap_err();
    assert!(matches!(error, StorageError::Mismatch { what: "member id", .. }));
    let text = error.to_string();
    assert!(
        text.contains("IDENTITY") && text.contains('3') && text.contains("18446744073709551615")
    );
    assert_eq!(Identity::load(&root).unwrap(), Some(identity(u64::MAX)));
}

#[test]
fn a_changed_byte_in_the_identity_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    identity(7).create(dir.path()).unwrap();
    let path = Identity::path(dir.path());
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        match Identity::load(dir.path()) {
            Err(error) => assert!(error.is_corrupt(), "byte {at}: {error}"),
            // White space between tokens has no meaning.
            Ok(found) => assert!(found == Some(identity(7)) && good[at].is_ascii_whitespace()),
        }
    }
}
