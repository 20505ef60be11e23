//! `rolloutctl token list`: every valid join token, newest first.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::summary::Token;
use crate::output::{self, Report, Table, duration};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
struct TokenList {
    tokens: Vec<Token>,
}

impl Report for TokenList {
    const KIND: &'static str = "TokenList";

    fn table(&self) -> String {
        self.columns(&[])
    }

    fn wide(&self) -> String {
        self.columns(&["LABELS"])
    }
}

impl TokenList {
    fn columns(&self, more: &[&str]) -> String {
        let mut table = Table::new(&["NAME", "GRANTS", "NAMESPACES", "USED", "LEFT"]).and(more);
        for token in &self.tokens {
            let labels: Vec<String> =
                token.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            table.row([
                token.name.clone(),
                token.who(),
                token.of_namespaces(),
                format!("{} of {}", token.uses, token.uses_max),
                duration(token.left_s()),
                labels.join(","),
            ]);
        }
        table.to_string()
    }
}

/// Which tokens.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    options: ListOptions,
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let answer = globals
            .connect
            .settings()?
            .client(None)?
            .with_leader_opts("list join tokens", CallOptions::read(), |channel| async move {
                services::tokens(channel).list_tokens(v1::ListTokensRequest {}).await
            })
            .await?;
        let mut tokens = newest_first(answer.tokens);
        self.options.apply(&mut tokens)?;
        output::emit(globals.format, &TokenList { tokens })
    }
}

/// A member of an earlier version sends no ages: its tokens stay in the order of their names.
fn newest_first(mut wire: Vec<v1::TokenInfo>) -> Vec<Token> {
    wire.sort_by_key(|token| token.age_ms);
    wire.into_iter().map(Token::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_the_role_of_each_token_and_never_a_secret() {
        let token = v1::TokenInfo {
            name: "rack-7".into(),
            role: "worker".into(),
            namespaces: vec!["team".into()],
            labels: [("pool".to_owned(), "spot".to_owned())].into(),
            uses: 3,
            uses_max: 8,
            left_ms: 90_000,
            age_ms: 7_110_000,
            ..Default::default()
        };
        let alice = v1::TokenInfo {
            name: "alice".into(),
            role: "client".into(),
            holder: "alice".into(),
            uses_max: 1,
            left_ms: 3_600_000,
            age_ms: 0,
            ..Default::default()
        };
        let list = TokenList { tokens: newest_first(vec![token, alice]) };
        crate::golden::report("token-list.txt", &list);
        let text = list.wide();
        for shown in ["client alice", "0 of 1", "3 of 8", "team", "pool=spot"] {
            assert!(text.contains(shown), "{shown} in {text}");
        }
        let json = serde_json::to_value(&list).unwrap();
        assert_eq!(json["tokens"][1]["leftMs"], "90000");
        assert!(json["tokens"][0].get("token").is_none());
    }
}
