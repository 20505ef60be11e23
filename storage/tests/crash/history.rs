//! Owns: the promises so far, and their comparison with a directory's content.

use std::collections::BTreeMap;
use std::path::Path;

use rollout_storage::{BlobStore, ImageStore, RaftLog, Spool};

use crate::child::{Task, log_options, payload};

#[derive(Default)]
pub(crate) struct History {
    /// Acknowledged entries that no announced removal covers: index, generation.
    entries: BTreeMap<u64, u64>,
    purged: u64,
    /// Announced truncations: the last kept index, and the generation of the entries that follow.
    truncated: Vec<(u64, u64)>,
    vote: u64,
    image: u64,
    /// The last durable row, and the last that may have been cleared.
    spooled: Option<u64>,
    cleared: Option<u64>,
    blobs: Vec<(String, [u8; 32])>,
}

impl History {
    /// Adds a child's lines. Returns how many promises they were.
    pub(crate) fn add(&mut self, lines: &[String]) -> u64 {
        let mut promises = 0;
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            promises += 1;
            match words[..] {
                ["acked", first, last, generation] => {
                    let generation = number(generation);
                    for index in number(first)..=number(last) {
                        if !self.removed(index, generation) {
                            self.entries.insert(index, generation);
                        }
                    }
                }
                ["vote", vote] => self.vote = self.vote.max(number(vote)),
                ["image", counter] => self.image = self.image.max(number(counter)),
                ["spooled", row] => self.spooled = Some(number(row)),
                ["blob", key, digest] => {
                    let digest = blake3::Hash::from_hex(digest).unwrap();
                    self.blobs.push((key.to_owned(), *digest.as_bytes()));
                }
                _ => {
                    promises -= 1;
                    self.announced(&words);
                }
            }
        }
        promises
    }

    fn announced(&mut self, words: &[&str]) {
        match *words {
            ["truncate", kept, generation] => {
                self.entries.split_off(&(number(kept) + 1));
                self.truncated.push((number(kept), number(generation)));
            }
            ["purge", index] => {
                self.purged = self.purged.max(number(index));
                self.entries = self.entries.split_off(&(number(index) + 1));
            }
            ["clear", row] => self.cleared = Some(number(row)),
            _ => {}
        }
    }

    /// Whether an entry's removal was announced while its acknowledgment was in progress.
    fn removed(&self, index: u64, generation: u64) -> bool {
        let later = |&(kept, since): &(u64, u64)| since > generation && kept < index;
        // Generations of an earlier child are lower than any of this one.
        index <= self.purged || self.truncated.iter().any(later)
    }

    /// Compares the promises with a directory. The error names the broken promise.
    pub(crate) fn check(&mut self, task: Task, root: &Path) -> Result<(), String> {
        match task {
            Task::Log => self.check_log(&root.join("log")),
            Task::Image => self.check_image(&root.join("image")),
            Task::Spool => self.check_spool(&root.join("spool/open")),
            Task::Blob => self.check_blobs(root),
        }
    }

    fn check_log(&mut self, dir: &Path) -> Result<(), String> {
        let log = RaftLog::open(dir, log_options(false)).map_err(|error| error.to_string())?;
        let bounds = log.bounds();
        let purged = bounds.purged.map(|(index, _)| index);
        if purged.is_some_and(|index| index > self.purged) {
            return Err(format!("purged to {purged:?}, only {} was asked for", self.purged));
        }
        let found = log.read(0, u64::MAX, usize::MAX).map_err(|error| error.to_string())?;
        if found.last().map(|(index, _)| *index) != bounds.last.map(|(index, _)| index) {
            return Err("bounds and entries differ".to_owned());
        }
        let found: BTreeMap<u64, Vec<u8>> = found.into_iter().collect();
        for (index, bytes) in &found {
            let generation = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            if *bytes != payload(*index, generation, bytes.len() - 16) {
                return Err(format!("entry {index} is not what was written"));
            }
            if self.entries.get(index).is_some_and(|acked| *acked != generation) {
                return Err(format!("entry {index} was acknowledged and then replaced"));
            }
        }
        if let Some(index) = self.entries.keys().find(|index| !found.contains_key(index)) {
            let last = found.keys().last();
            return Err(format!(
                "entry {index} was acknowledged and is lost, the last is {last:?}"
            ));
        }
        let vote = log.meta("vote").map_err(|error| error.to_string())?;
        let vote = vote.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        if vote < self.vote {
            return Err(format!("vote {} was acknowledged, {vote} is left", self.vote));
        }
        Ok(())
    }

    fn check_image(&mut self, dir: &Path) -> Result<(), String> {
        let image = ImageStore::open(dir).map_err(|error| error.to_string())?;
        let mut counters = Vec::new();
        image
            .for_each(|key, value| {
                let value = u64::from_le_bytes(value.try_into().unwrap());
                counters.push((String::from_utf8_lossy(key).into_owned(), value));
                Ok::<_, rollout_storage::StorageError>(())
            })
            .map_err(|error| error.to_string())?;
        let counter = counters.first().map_or(0, |(_, counter)| *counter);
        if counter < self.image {
            return Err(format!("batch {} was acknowledged, {counter} is left", self.image));
        }
        let whole = counters.iter().all(|(_, each)| *each == counter)
            && (counter == 0 || counters.len() as u64 == 1 + counter % 50);
        if !whole {
            return Err(format!("batch {counter} is torn: {counters:?}"));
        }
        if let Some(snapshot) = image.current_snapshot() {
            let reader = snapshot.open_image().map_err(|error| error.to_string())?;
            let found = reader.get(b"counter").map_err(|error| error.to_string())?;
            found.ok_or("the snapshot lacks its counter")?;
        }
        Ok(())
    }

    fn check_spool(&mut self, path: &Path) -> Result<(), String> {
        let (_, rows) = Spool::open(path).map_err(|error| error.to_string())?;
        if rows.windows(2).any(|pair| pair[0].row + 1 != pair[1].row) {
            return Err("rows are missing in the middle".to_owned());
        }
        if let Some(row) =
            rows.iter().find(|row| row.body != payload(row.row, 0, row.body.len() - 16))
        {
            return Err(format!("row {} is not what was written", row.row));
        }
        let last = rows.last().map(|row| row.row);
        if self.spooled > self.cleared && last < self.spooled {
            return Err(format!("row {:?} was acknowledged, the last is {last:?}", self.spooled));
        }
        // The next child counts from the rows that are left here.
        if last < self.cleared || last.is_none() {
            (self.spooled, self.cleared) = (last, None);
        }
        Ok(())
    }

    fn check_blobs(&mut self, root: &Path) -> Result<(), String> {
        let url = format!("file://{}/blobs", root.display());
        let store = BlobStore::open(&url).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (key, digest) in &self.blobs {
            runtime.block_on(store.get(key, digest)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap()
}
