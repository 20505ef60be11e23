//! `docs/authorization.md` has a table of all methods: who may call each, and whether it is audited.
//!
//! Invariant: the table is what the options in the .proto files say, so a change of an option shows as a change of the
//! page. Rewrite the table with `ROLLOUT_REWRITE=1 cargo test -p rollout-proto --test authorization`.
//! Absent: whether members act on it. `tests/tests/security/authorization.rs` calls every method of real members.

use std::path::Path;

use rollout_proto::{METHODS, Method, Role};

const BEGIN: &str = "<!-- written by proto/tests/authorization.rs -->\n";
/// `none`: a caller with a certificate of an authority that the members do not trust.
const CALLERS: [(&str, Option<Role>); 7] = [
    ("none", None),
    ("newcomer", Some(Role::Unenrolled)),
    ("member", Some(Role::Member)),
    ("worker", Some(Role::Worker)),
    ("viewer", Some(Role::Viewer)),
    ("client", Some(Role::Client)),
    ("admin", Some(Role::Admin)),
];

fn table() -> String {
    let names = CALLERS.map(|(name, _)| name).join(" | ");
    let rule = " --- |".repeat(CALLERS.len() + 2);
    let mut table = format!("| method | {names} | audited |\n|{rule}\n");
    for method in METHODS {
        let name = method.path.trim_start_matches("/rollout.v1.");
        table.push_str(&format!("| {name} |{}\n", cells(method)));
    }
    table
}

fn cells(method: &Method) -> String {
    let may =
        |(_, role): (&str, Option<Role>)| role.is_some_and(|role| method.roles.contains(&role));
    let cells = CALLERS.map(may).into_iter().chain([method.audited]);
    cells.map(|yes| if yes { " yes |" } else { " |" }).collect()
}

#[test]
fn the_page_says_who_may_call_each_method_and_whether_it_is_audited() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/authorization.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let (prose, _) = text.split_once(BEGIN).expect("the page has a table");
    rollout_recorded::check(&page, &format!("{prose}{BEGIN}\n{}", table()));
}
