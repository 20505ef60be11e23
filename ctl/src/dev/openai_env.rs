//! The file with which a shell calls the cluster's HTTP API: `openai.env`.
//!
//! Invariant: only its owner can read it, because it has a key. The cluster has the key before the file exists. A file
//! stays as it is, and so does its key; without the file, the next start creates another key.
//! Absent: removing keys that no file has.

use std::fs::{OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context as _;
use rollout_proto::{ApiKey, ClientError, ErrorCode, services, v1};

use super::cluster::DevCluster;
use super::layout::Layout;
use super::ready;
use crate::hint::{shell_path, shell_word};

/// The name of the key.
const NAME: &str = "dev";

/// Writes the file unless it exists.
///
/// # Errors
/// The cluster does not create a key, or the file cannot be written.
pub(super) async fn write(cluster: &DevCluster) -> anyhow::Result<()> {
    let layout = cluster.layout();
    if layout.openai_env().exists() {
        return Ok(());
    }
    let key = ApiKey::draw().context("cannot create a key for the HTTP API")?;
    match create(cluster, &key).await {
        Ok(()) => {}
        // Its data is that of an earlier build, which had no keys. The rest of the cluster works.
        Err(ClientError::Rpc(error)) if error.code == ErrorCode::VersionRefused => return Ok(()),
        Err(error) => return Err(error).context("cannot create a key for the HTTP API"),
    }
    let members = &cluster.saved().members;
    let url = members.first().map(|member| format!("https://{}/v1", member.api_addr()));
    let text = text(layout, &url.unwrap_or_default(), &key);
    write_private(&layout.openai_env(), text.as_bytes())
}

async fn create(cluster: &DevCluster, key: &ApiKey) -> Result<(), ClientError> {
    let client = ready::client(cluster, cluster.admin())?;
    let number = client.open_session("rollout dev").await?.request();
    let request = v1::CreateKeyRequest {
        request: Some(number.id()),
        id: key.id().to_owned(),
        name: NAME.to_owned(),
        role: "client".to_owned(),
        secret_hash: key.hash().to_vec().into(),
        ..v1::CreateKeyRequest::default()
    };
    client
        .with_leader("create an API key", |channel| {
            let request = request.clone();
            async move { services::keys(channel).create_key(request).await }
        })
        .await
        .map(drop)
}

/// Commands of a shell that set the variables of the `openai` client.
fn text(layout: &Layout, url: &str, key: &ApiKey) -> String {
    let ca = layout.tls().join("ca.pem");
    format!(
        "export OPENAI_BASE_URL={}\nexport OPENAI_API_KEY={}\nexport SSL_CERT_FILE={}\n",
        shell_word(url),
        key.reveal(),
        shell_path(&ca)
    )
}

/// Creates a file that only its owner can read, as a whole.
fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || {
        let temporary = path.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary)?;
        // A file that an earlier start left may have another mode.
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_variables_and_others_cannot_read_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(&dir.path().join("it's a $dir")).unwrap();
        let key = ApiKey::draw().unwrap();
        let text = text(&layout, "https://127.0.0.1:7424/v1", &key);
        let path = layout.openai_env();
        write_private(&path, text.as_bytes()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let script = format!(
            ". {}; echo $OPENAI_BASE_URL; echo $OPENAI_API_KEY; echo \"$SSL_CERT_FILE\"",
            shell_path(&path)
        );
        let said = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let ca = layout.tls().join("ca.pem").display().to_string();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines, ["https://127.0.0.1:7424/v1", key.reveal(), &ca]);
    }
}
