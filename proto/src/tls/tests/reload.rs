//! Certificates change while connections are made.

use super::*;

async fn presented(tls: &ClientTls, addr: SocketAddr) -> CertificateDer<'static> {
    let stream = connect(tls.connector().unwrap(), addr).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

fn on_disk(files: &TlsFiles) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(&files.cert).unwrap()
}

#[tokio::test]
async fn a_renewed_certificate_is_presented_without_a_restart() {
    let authority = Authority::new();
    let files = authority.issue(Role::Member, "c1");
    let (incoming, addr) = listen(load_server(&files)).await;
    let _seen = greet(incoming);
    let tls = load_client(&authority.issue(Role::Client, "ann"));
    let before = on_disk(&files);
    assert_eq!(presented(&tls, addr).await, before);

    authority.issue(Role::Member, "c1");
    assert_ne!(on_disk(&files), before);
    // The test does not notify the server: it checks the files by itself.
    timeout(LIMIT, async {
        while presented(&tls, addr).await != on_disk(&files) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .expect("the renewed certificate was never presented");
}

#[tokio::test]
async fn a_caller_presents_its_renewed_certificate_too() {
    let authority = Authority::new();
    let (mut incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let files = authority.issue(Role::Client, "ann");
    let tls = load_client(&files);
    assert!(!tls.refresh(), "nothing changed yet");
    // The same files now have another identity.
    let renamed = authority.issue(Role::Client, "bob");
    std::fs::rename(&renamed.key, &files.key).unwrap();
    std::fs::rename(&renamed.cert, &files.cert).unwrap();
    assert!(tls.refresh());
    assert_eq!(tls.identity().name, "bob");
    let (_stream, conn) =
        tokio::join!(connect(tls.connector().unwrap(), addr), next(&mut incoming));
    assert_eq!(conn.peer().identity.name, "bob");
}

#[tokio::test]
async fn files_that_cannot_be_used_never_replace_those_that_could() {
    let authority = Authority::new();
    let files = authority.issue(Role::Member, "c1");
    let server = load_server(&files);
    let (incoming, addr) = listen(server.clone()).await;
    let _seen = greet(incoming);
    let tls = load_client(&authority.issue(Role::Client, "ann"));
    let before = on_disk(&files);
    let (cert, key) = (std::fs::read(&files.cert).unwrap(), std::fs::read(&files.key).unwrap());

    let ends = server.validity();
    assert_eq!(server.refused(), None);

    // A worker's certificate, half a file, no file, and the moment between two renames.
    let worker = authority.issue(Role::Worker, "w1");
    let other = authority.issue(Role::Member, "c2");
    for (bad_cert, bad_key) in [
        (Some(std::fs::read(&worker.cert).unwrap()), std::fs::read(&worker.key).unwrap()),
        (Some(cert[..cert.len() / 2].to_vec()), key.clone()),
        (None, key.clone()),
        (Some(cert.clone()), std::fs::read(&other.key).unwrap()),
    ] {
        match bad_cert {
            Some(bytes) => std::fs::write(&files.cert, bytes).unwrap(),
            None => std::fs::remove_file(&files.cert).unwrap(),
        }
        std::fs::write(&files.key, bad_key).unwrap();
        assert!(!server.refresh());
        assert_eq!(presented(&tls, addr).await, before);
        assert_eq!(server.identity().name, "c1");
        assert!(server.refused().is_some(), "the refusal is reported");
        assert_eq!(server.validity(), ends, "the validity is that of the certificate in use");
    }

    // Once the files are usable again, they are loaded.
    authority.issue(Role::Member, "c1");
    assert!(server.refresh());
    assert_eq!(server.refused(), None);
    assert_eq!(presented(&tls, addr).await, on_disk(&files));
}

#[tokio::test]
async fn trust_in_a_new_authority_is_added_and_in_an_old_one_withdrawn() {
    let (old, new) = (Authority::new(), Authority::new());
    let files = old.issue(Role::Member, "c1");
    let server = load_server(&files);
    let (incoming, addr) = listen(server.clone()).await;
    let _seen = greet(incoming);
    let by = |authority: &Authority| {
        let own = authority.issue(Role::Client, "ann");
        lax_connector(&old.path().join("ca.pem"), Some((&own.cert, &own.key)))
    };
    // The caller's own root stays readable under its old name.
    let trusted = TlsFiles { ca: old.path().join("trusted.pem"), ..files };
    let both = [old.path(), new.path()].map(|dir| std::fs::read(dir.join("ca.pem")).unwrap());
    std::fs::write(&trusted.ca, &both[0]).unwrap();
    let server_too = load_server(&trusted);
    let (incoming, addr_too) = listen(server_too.clone()).await;
    let _seen_too = greet(incoming);

    assert!(is_let_in(by(&old), addr_too).await && !is_let_in(by(&new), addr_too).await);
    std::fs::write(&trusted.ca, both.concat()).unwrap();
    assert!(server_too.refresh());
    assert!(is_let_in(by(&old), addr_too).await && is_let_in(by(&new), addr_too).await);
    std::fs::write(&trusted.ca, &both[1]).unwrap();
    assert!(server_too.refresh());
    assert!(!is_let_in(by(&old), addr_too).await && is_let_in(by(&new), addr_too).await);
    // The caller whose files did not change trusts the same authorities as before.
    assert!(is_let_in(by(&old), addr).await && !is_let_in(by(&new), addr).await);
}
