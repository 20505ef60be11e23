//! Parses `name key=value key="a value" flag`: one line of input, and the short notations in it.
//!
//! Rows are `0-3,7`; a set is `attempt:rows`, with its run before it where none is implied (`run:attempt:rows`); an
//! attempt or session is `index.position`.

use rollout_ledger::Rows;
use std::collections::BTreeMap;

pub(crate) struct Args {
    pub(crate) name: String,
    line: String,
    values: BTreeMap<String, String>,
}

pub(crate) type Parsed<T> = Result<T, String>;

impl Args {
    pub(crate) fn parse(line: &str) -> Parsed<Self> {
        let mut words = words(line).into_iter();
        let name = words.next().ok_or("an empty line")?;
        let mut values = BTreeMap::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word.as_str(), ""));
            if values.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(format!("{key} twice in: {line}"));
            }
        }
        Ok(Self { name, line: line.to_owned(), values })
    }

    pub(crate) fn get(&mut self, key: &str) -> Option<String> {
        self.values.remove(key)
    }

    pub(crate) fn flag(&mut self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn text(&mut self, key: &str) -> Parsed<String> {
        self.get(key).ok_or_else(|| format!("no {key}= in: {}", self.line))
    }

    pub(crate) fn text_or(&mut self, key: &str, or: &str) -> String {
        self.get(key).unwrap_or_else(|| or.to_owned())
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self, key: &str, or: T) -> Parsed<T> {
        match self.get(key) {
            Some(text) => text.parse().map_err(|_| format!("{key}={text} is no number")),
            None => Ok(or),
        }
    }

    pub(crate) fn list(&mut self, key: &str) -> Vec<String> {
        let text = self.get(key).unwrap_or_default();
        text.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect()
    }

    pub(crate) fn labels(&mut self, key: &str) -> Parsed<BTreeMap<String, String>> {
        let pair = |t: &String| {
            let (k, v) = t.split_once(':').ok_or_else(|| format!("{t} is no key:value"))?;
            Ok((k.to_owned(), v.to_owned()))
        };
        self.list(key).iter().map(pair).collect()
    }

    /// Fails if an argument was not used.
    pub(crate) fn finish(self) -> Parsed<()> {
        match self.values.keys().next() {
            Some(key) => Err(format!("{key}= means nothing in: {}", self.line)),
            None => Ok(()),
        }
    }
}

/// Splits at blanks that are outside of double quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|w| !w.is_empty());
    words
}

pub(crate) fn rows(text: &str) -> Parsed<Rows> {
    let bad = || format!("{text} are no rows");
    let mut ranges = Vec::new();
    for range in text.split(',').filter(|t| !t.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u64 = first.parse().map_err(|_| bad())?;
        let last: u64 = last.parse().map_err(|_| bad())?;
        ranges.push((first, (last + 1 - first) as u32));
    }
    Rows::from_ranges(ranges).ok_or_else(bad)
}

/// `index.position` as the word that it is.
pub(crate) fn stamp(text: &str) -> Parsed<u64> {
    let bad = || format!("{text} is no index.position");
    let (index, position) = text.split_once('.').ok_or_else(bad)?;
    let (index, position): (u64, u32) =
        (index.parse().map_err(|_| bad())?, position.parse().map_err(|_| bad())?);
    Ok(rollout_ledger::id::Attempt::at(index, position).0)
}
