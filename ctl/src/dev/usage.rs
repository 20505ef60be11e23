//! The commands that are printed for the user to run next.
//!
//! Invariant: a shell parses each of them as intended, whatever characters the directory's path has.

use rollout_batch::hint::shell_path;

use super::layout::Layout;

/// How to use the cluster of a directory, as a user and as an operator.
pub(super) fn commands(layout: &Layout) -> String {
    let (client, admin) = (layout.context("client"), layout.context("admin"));
    format!(
        "  export ROLLOUT_CONTEXT={}\n  rollout infer batch --config batch.toml\n  \
         rolloutctl --context {} status\n",
        shell_path(&client),
        shell_path(&admin)
    )
}

/// How to use the cluster with the `openai` client, if it has a key for that.
pub(super) fn python(layout: &Layout) -> String {
    let env = layout.openai_env();
    if !env.exists() {
        return String::new();
    }
    format!(
        "  . {}\n  python3\n    from openai import OpenAI\n    client = OpenAI()\n    \
         print([model.id for model in client.models.list()])\n",
        shell_path(&env)
    )
}

/// How to stop it.
pub(super) fn stop(layout: &Layout) -> String {
    format!("rollout dev stop --dir {}", shell_path(layout.root()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_every_command_as_it_was_meant() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(&dir.path().join("it's a $dir")).unwrap();
        let script = format!(
            "say() {{ for word in \"$@\"; do echo \"$word\"; done; }}\n\
             rollout() {{ say \"$@\"; }}\nrolloutctl() {{ say \"$@\"; }}\n{}{}\necho \"$ROLLOUT_CONTEXT\"\n",
            commands(&layout),
            stop(&layout)
        );
        let said = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
        assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
        let said = String::from_utf8(said.stdout).unwrap();
        for path in [&layout.context("client"), &layout.context("admin"), layout.root()] {
            let path = path.display().to_string();
            assert!(said.lines().any(|word| word == path), "{path}: {said}");
        }
    }
}
