//! `rolloutctl member replace OLD [NEW]`: a new member gets the old one's vote in the step that removes the old one.

use super::add::{NewMember, add};
use super::list;
use super::plan_checks::{check_place, find, line, voter_of};
use crate::completer::{self, Names};
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Who replaces whom.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplaceArgs {
    /// The member that leaves; it may be dead
    #[arg(add = completer::of(Names::Members))]
    pub(in crate::rolloutctl) old: String,
    /// Name of the new member [default: the same name, with an empty disk]
    pub(in crate::rolloutctl) new_name: Option<String>,
    #[command(flatten)]
    pub(in crate::rolloutctl) new: NewMember,
}

impl Verb for ReplaceArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: client_plan };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let name = self.new_name.unwrap_or_else(|| self.old.clone());
        add(&globals.connect, globals.format, (name, Some(self.old)), self.new, false).await
    }
}

impl Planned for ReplaceArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let list = list::fetch(&reader.client).await?;
        let old = line(voter_of(&list.members, find(&list.members, &self.old)?)?);
        let name = self.new_name.unwrap_or_else(|| self.old.clone());
        let (peer, client) = (&self.new.peer_addr, &self.new.client_addr);
        let fresh = (name.as_str(), peer.to_string(), client.to_string());
        check_place(&list.members, &self.old, &fresh)?;
        let at = self.new.client_addr.to_string();
        let new = reader.new_member(&name, &at).await?;
        let would = format!("replace {} by member {name}", self.old);
        Ok(Plan::new(would, format!("{old}; {new}")))
    }
}
