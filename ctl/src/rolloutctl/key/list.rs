//! `rolloutctl key list`: every valid API key of the namespace, or of all, newest first.

use std::cmp::Reverse;

use rollout_proto::{Client, ClientError, services, v1};
use serde::Serialize;

use super::summary::{Key, LIMITS};
use crate::output::{self, Report, Table};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::read::read;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which keys.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    all_namespaces: AllNamespaces,
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Serialize)]
struct KeyList {
    keys: Vec<Key>,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    all_namespaces: bool,
}

impl Report for KeyList {
    const KIND: &'static str = "KeyList";

    fn table(&self) -> String {
        self.columns(false)
    }

    fn wide(&self) -> String {
        self.columns(true)
    }
}

impl KeyList {
    fn columns(&self, wide: bool) -> String {
        let namespace: &[&str] = if self.all_namespaces { &["NAMESPACE"] } else { &[] };
        let limits: &[&str] = if wide { &LIMITS } else { &[] };
        let titles = &["ID", "NAME", "ROLE", "CREATED", "LEFT"];
        let mut table = Table::new(namespace).and(titles).and(limits);
        for key in &self.keys {
            let namespace = self.all_namespaces.then(|| key.namespace.clone());
            let cells = [
                key.key_id.clone(),
                key.name.clone(),
                key.role.clone(),
                key.created_at.clone(),
                key.left(),
            ];
            let limits = wide.then(|| key.limits()).into_iter().flatten();
            table.row(namespace.into_iter().chain(cells).chain(limits));
        }
        table.to_string()
    }
}

/// The request for the page after these keys; `None` if there are no more.
fn next_page(
    request: &v1::ListKeysRequest,
    answer: &v1::ListKeysResponse,
) -> Option<v1::ListKeysRequest> {
    let last = answer.keys.last().filter(|_| answer.more)?;
    Some(v1::ListKeysRequest { after: last.id.clone(), ..request.clone() })
}

/// Asks the leader for all keys of a namespace, or of all, newest first.
pub(super) async fn fetch(client: &Client, namespace: &str) -> Result<Vec<Key>, ClientError> {
    let namespace = namespace.to_owned();
    let mut request = v1::ListKeysRequest { namespace, ..Default::default() };
    let mut keys: Vec<Key> = Vec::new();
    loop {
        let answer = read(client, "list API keys", &request, |channel, request| async move {
            services::keys(channel).list_keys(request).await
        })
        .await?;
        let next = next_page(&request, &answer);
        keys.extend(answer.keys.into_iter().map(Key::from));
        let Some(next) = next else { break };
        request = next;
    }
    newest_first(&mut keys);
    Ok(keys)
}

/// Sorts keys, which come by id.
fn newest_first(keys: &mut [Key]) {
    keys.sort_by_key(|key| Reverse(key.created_wall_ms));
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let namespace = self.all_namespaces.namespace(settings.namespace);
        let mut keys = fetch(&client, &namespace).await?;
        self.options.apply(&mut keys)?;
        let all_namespaces = self.all_namespaces.is_requested();
        output::emit(globals.format, &KeyList { keys, all_namespaces })
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::{bare_sample, sample};
    use super::*;

    #[test]
    fn a_list_shows_the_newest_key_first_and_never_a_secret() {
        let mut keys = vec![sample().into(), bare_sample().into()];
        newest_first(&mut keys);
        let list = KeyList { keys, all_namespaces: false };
        crate::golden::report("key-list.txt", &list);
        assert!(list.table().contains("aB3dE6gH  ci"), "{}", list.table());
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json["keys"][0]["keyId"], "Zz9Yy8Xx");
        assert!(json["keys"][0].get("apiKey").is_none());
        let all = KeyList { all_namespaces: true, ..list }.table();
        assert!(all.starts_with("NAMESPACE  ID"), "{all}");
    }

    #[test]
    fn pages_follow_each_other_by_id() {
        let asked = v1::ListKeysRequest { namespace: "team".into(), ..Default::default() };
        let mut answer =
            v1::ListKeysResponse { keys: vec![sample()], more: true, ..Default::default() };
        let next = next_page(&asked, &answer).expect("there are more");
        assert_eq!((&*next.after, &*next.namespace), ("aB3dE6gH", "team"));
        answer.more = false;
        assert_eq!(next_page(&next, &answer), None);
    }
}
