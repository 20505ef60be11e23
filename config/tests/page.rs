//! The page of the settings has their tables. `ROLLOUT_REWRITE=1` writes them.

use rollout_config::{Daemon, keys, page};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/configuration.md");
const END: &str = "<!-- end of the table -->";

#[test]
fn the_tables_of_the_page_are_those_of_the_settings() {
    let mut text = std::fs::read_to_string(PAGE).unwrap();
    for daemon in Daemon::ALL {
        let program = daemon.program();
        let begin =
            format!("<!-- settings of {program}: config/tests/page.rs writes this table -->");
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (shown, after) = rest.split_once(END).unwrap_or_else(|| panic!("no {END}"));
        let table = format!("\n\n{}\n", page::table(keys(daemon)));
        if std::env::var_os("ROLLOUT_REWRITE").is_none() {
            let text = "ROLLOUT_REWRITE=1 writes the table of";
            assert_eq!(shown, table, "{text} {program}");
        }
        text = format!("{before}{begin}{table}{END}{after}");
    }
    if std::env::var_os("ROLLOUT_REWRITE").is_some() {
        std::fs::write(PAGE, text).unwrap();
    }
}
