//! Which module of a folder uses which, and the cycles among them.
//!
//! *Invariant:* a use is one between the two modules of a folder that contain its ends, however deep in them these are.
//! A path through a re-export is a use of the module that re-exports, too.
//! Absent: uses between a module and those in it, names that a `use` of all names (`*`) brings, and uses that name no
//! path, such as methods.

use crate::modules::{ModulePath, Modules, modules};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A use of one module by another of the same folder.
#[derive(Debug)]
pub(super) struct Use {
    /// The module whose folder it is.
    pub(super) within: ModulePath,
    pub(super) from: String,
    pub(super) to: String,
    /// File and line.
    pub(super) at: String,
}

/// Modules of one folder that use each other, directly or through others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cycle {
    /// The module whose folder it is, as a path from the crate's root. Empty for the root.
    pub(super) within: String,
    /// Two or more, sorted.
    pub(super) modules: Vec<String>,
}

/// The uses in a crate.
pub(super) struct Graph {
    pub(super) uses: Vec<Use>,
    folders: BTreeSet<ModulePath>,
}

impl Graph {
    /// That of the crate with this root file.
    pub(super) fn of(root: &Path) -> Self {
        let modules = modules(root);
        let mut uses = Vec::new();
        for (from, module) in &modules {
            for (path, line) in &module.paths {
                for to in named(&modules, from, path, &mut Vec::new()) {
                    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                    let (Some(below), Some(other)) = (from.get(shared), to.get(shared)) else {
                        continue;
                    };
                    uses.push(Use {
                        within: from[..shared].to_vec(),
                        from: below.clone(),
                        to: other.clone(),
                        at: format!("{}:{line}", module.file.display()),
                    });
                }
            }
        }
        let folders = modules.into_iter().filter(|(_, module)| module.is_folder);
        Self { uses, folders: folders.map(|(path, _)| path).collect() }
    }

    /// The cycles across folders: among the top-level modules all, below them those with a folder.
    pub(super) fn cycles(&self) -> BTreeSet<Cycle> {
        let mut by_folder: BTreeMap<&[String], Vec<&Use>> = BTreeMap::new();
        for one in &self.uses {
            by_folder.entry(&one.within).or_default().push(one);
        }
        let mut cycles = BTreeSet::new();
        for (within, uses) in by_folder {
            let is_folder = |name: &String| {
                self.folders.contains([within, std::slice::from_ref(name)].concat().as_slice())
            };
            for modules in groups(&uses) {
                if within.is_empty() || modules.iter().any(is_folder) {
                    cycles.insert(Cycle { within: within.join("::"), modules });
                }
            }
        }
        cycles
    }

    /// Where the modules of a cycle use each other.
    pub(super) fn shown(&self, cycle: &Cycle) -> String {
        let Cycle { within, modules } = cycle;
        let is_of = |one: &&Use| {
            one.within.join("::") == *within
                && modules.contains(&one.from)
                && modules.contains(&one.to)
        };
        let line = |one: &Use| format!("\n  {} uses {}: {}", one.from, one.to, one.at);
        let lines: BTreeSet<String> = self.uses.iter().filter(is_of).map(line).collect();
        lines.into_iter().collect()
    }
}

/// The modules that a path names: that of its end, and those whose `use` statements it leads through. `seen` has the
/// names that were replaced on the way here.
fn named(
    modules: &Modules,
    from: &[String],
    path: &[String],
    seen: &mut Vec<(ModulePath, String)>,
) -> Vec<ModulePath> {
    let (mut at, mut rest) = match path.first().map(String::as_str) {
        Some("crate") => (ModulePath::new(), &path[1..]),
        Some("self") => (from.to_vec(), &path[1..]),
        Some("super") => {
            let up = path.iter().take_while(|word| *word == "super").count();
            if up > from.len() {
                return Vec::new();
            }
            (from[..from.len() - up].to_vec(), &path[up..])
        }
        Some(first) => {
            let module = &modules[from];
            if !module.children.contains(first) && !module.names.contains_key(first) {
                return Vec::new();
            }
            (from.to_vec(), path)
        }
        None => return Vec::new(),
    };
    while let Some(word) = rest.first().filter(|word| modules[&at].children.contains(*word)) {
        at.push(word.clone());
        rest = &rest[1..];
    }
    let mut found = Vec::new();
    if let Some((word, behind)) = rest.split_first() {
        let here = (at.clone(), word.clone());
        if !seen.contains(&here) {
            seen.push(here);
            for path in modules[&at].names.get(word).into_iter().flatten() {
                let path = [path.as_slice(), behind].concat();
                found.extend(named(modules, &at, &path, seen));
            }
            seen.pop();
        }
    }
    found.push(at);
    found
}

/// Modules that use each other, directly or through others, in groups of two and more.
fn groups(uses: &[&Use]) -> BTreeSet<Vec<String>> {
    let mut direct: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for one in uses {
        direct.entry(&one.from).or_default().insert(&one.to);
    }
    let all: BTreeMap<&str, BTreeSet<&str>> =
        direct.keys().map(|from| (*from, reached(&direct, from))).collect();
    let mut groups = BTreeSet::new();
    for (from, to) in &all {
        let mutual = |to: &&&str| all.get(**to).is_some_and(|back| back.contains(from));
        let group: Vec<String> = to.iter().filter(mutual).map(|to| (*to).to_owned()).collect();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    groups
}

/// What a module uses, directly or through others.
fn reached<'a>(direct: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        for to in direct.get(next).into_iter().flatten() {
            if seen.insert(*to) {
                open.push(*to);
            }
        }
    }
    seen
}
