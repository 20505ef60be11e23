//! Which top-level module of a crate uses which, and the cycles among them.
//!
//! *Invariant:* every file is read that the crate's root declares, directly or through other modules, outside of tests.
//! Absent: items of the root file itself, and uses that name no path, such as methods.

use super::code::{Token, tokens};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A use of one top-level module by another.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) from: String,
    pub(super) to: String,
    /// File and line.
    pub(super) at: String,
}

/// The top-level modules of a crate.
struct Modules {
    names: BTreeSet<String>,
    /// Names that the root re-exports, and the modules that have them.
    exported: BTreeMap<String, String>,
}

impl Modules {
    fn of(root: &[Token]) -> Self {
        let declared = root.windows(3).filter(|w| w[0].is("mod") && w[2].is(";"));
        let names: BTreeSet<String> = declared.map(|w| w[1].text.clone()).collect();
        let mut exported = BTreeMap::new();
        for statement in root.split(|token| token.is(";")) {
            let Some(at) = statement.iter().position(|token| token.is("use")) else { continue };
            let path = statement[at + 1..].iter();
            let path: Vec<&Token> =
                path.skip_while(|t| t.is("crate") || t.is("self") || t.is("::")).collect();
            let Some(first) = path.first().filter(|first| names.contains(&first.text)) else {
                continue;
            };
            for (at, token) in path.iter().enumerate() {
                let ends = path.get(at + 1).is_none_or(|next| next.is(",") || next.is("}"));
                if ends && token.is_word() {
                    exported.insert(token.text.clone(), first.text.clone());
                }
            }
        }
        Self { names, exported }
    }

    /// The module that a path from the root begins with.
    fn named(&self, name: &str) -> Option<&str> {
        let own = self.names.get(name);
        own.or_else(|| self.exported.get(name)).map(String::as_str)
    }
}

/// The names with which paths from the crate's root begin, and their lines.
type Heads = Vec<(String, usize)>;

/// The uses of top-level modules by each other.
pub(super) fn uses(root: &Path) -> Vec<Use> {
    let modules = Modules::of(&read(root));
    let folder = root.parent().expect("a root is in a folder");
    let mut open: Vec<(PathBuf, Vec<String>)> =
        modules.names.iter().map(|name| (folder.to_owned(), vec![name.clone()])).collect();
    let mut uses = Vec::new();
    while let Some((folder, path)) = open.pop() {
        let top = &path[0];
        let file = file_of(&folder, name_of(&path));
        let (children, heads) = contents(&read(&file), path.len());
        for (head, line) in heads {
            if let Some(to) = modules.named(&head).filter(|to| to != top) {
                let at = format!("{}:{line}", file.display());
                uses.push(Use { from: top.clone(), to: to.to_owned(), at });
            }
        }
        for mut child in children {
            let name = child.pop().expect("a child has a name");
            let folder = child.iter().fold(folder.join(name_of(&path)), |at, part| at.join(part));
            open.push((folder, [path.clone(), child, vec![name]].concat()));
        }
    }
    uses
}

fn name_of(path: &[String]) -> &str {
    &path[path.len() - 1]
}

fn read(file: &Path) -> Vec<Token> {
    let source = std::fs::read_to_string(file);
    tokens(&source.unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

fn file_of(folder: &Path, name: &str) -> PathBuf {
    let flat = folder.join(format!("{name}.rs"));
    if flat.exists() { flat } else { folder.join(name).join("mod.rs") }
}

/// The modules that a file declares, by their paths in it, and the heads of its paths. `depth` is that of its module.
fn contents(tokens: &[Token], depth: usize) -> (Vec<Vec<String>>, Heads) {
    let (mut children, mut heads) = (Vec::new(), Heads::new());
    let (mut braces, mut inline) = (0usize, Vec::<(usize, String)>::new());
    for (at, token) in tokens.iter().enumerate() {
        let rest = &tokens[at..];
        let third = rest.get(2).map_or("", |token| token.text.as_str());
        match (token.text.as_str(), third) {
            ("{", _) => braces += 1,
            ("}", _) => {
                braces = braces.saturating_sub(1);
                inline.pop_if(|(outside, _)| *outside == braces);
            }
            ("mod", ";") => {
                let within = inline.iter().map(|(_, name)| name.clone());
                children.push(within.chain([rest[1].text.clone()]).collect());
            }
            ("mod", "{") => inline.push((braces, rest[1].text.clone())),
            ("crate" | "super", _) if at == 0 || !tokens[at - 1].is("::") => {
                heads.extend(heads_of(from_root(rest, depth + inline.len())));
            }
            _ => {}
        }
    }
    (children, heads)
}

/// What follows `crate::`, or as many `super::` as lead from this depth to the root.
fn from_root(path: &[Token], depth: usize) -> &[Token] {
    let steps = path
        .chunks(2)
        .take_while(|step| step[0].is("super") && step.get(1).is_some_and(|token| token.is("::")));
    let up = steps.count();
    let absolute = path[0].is("crate") && path.get(1).is_some_and(|token| token.is("::"));
    match (absolute, up == depth) {
        (true, _) => &path[2..],
        (false, true) => &path[2 * up..],
        (false, false) => &[],
    }
}

/// The first names of the paths here: of one, or of those in braces.
fn heads_of(path: &[Token]) -> Heads {
    let head = |token: &Token| (token.text.clone(), token.line);
    match path.first() {
        Some(first) if first.is("{") => {}
        Some(first) if first.is_word() => return vec![head(first)],
        _ => return Heads::new(),
    }
    let (mut heads, mut braces, mut begins) = (Heads::new(), 0, false);
    for token in path {
        match token.text.as_str() {
            "{" => {
                braces += 1;
                begins = braces == 1;
            }
            "}" if braces == 1 => break,
            "}" => braces -= 1,
            "," => begins = braces == 1,
            _ => {
                if begins && token.is_word() {
                    heads.push(head(token));
                }
                begins = false;
            }
        }
    }
    heads
}

/// Modules that use each other, directly or through others, in groups of two and more.
pub(super) fn cycles(uses: &[Use]) -> BTreeSet<Vec<String>> {
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
