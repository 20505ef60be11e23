//! Files and uploads in the model: maps that are searched from scratch each time. And the actions on them. No story lasts
//! as long as a file or an upload at least.

use crate::naive::{Model, Outcome};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::id::LedgerMs;
use rollout_ledger::{
    BlobRef, Extent, FilePage, FilePurpose, FileSpec, Ledger, OpKind, OpenAiRefusal, Rejection,
    Reply, UploadState, file_of_upload, op, part_of_upload,
};
use std::collections::{BTreeMap, BTreeSet};

const NAMESPACES: [&str; 3] = ["default", "team", "nowhere"];

#[derive(Clone, Debug)]
struct File {
    spec: FileSpec,
    request: Option<[u8; 16]>,
    content: Vec<Extent>,
}

#[derive(Clone, Debug)]
struct Upload {
    spec: FileSpec,
    bytes: u64,
    state: UploadState,
    parts: Vec<(String, Extent)>,
}

#[derive(Default)]
pub(crate) struct Files {
    files: BTreeMap<String, File>,
    uploads: BTreeMap<String, Upload>,
    /// Removed folders, and whether their objects are gone.
    removed: BTreeMap<(String, String), bool>,
}

/// What is done with one of three files or two uploads.
#[derive(Clone, Debug)]
pub(crate) enum FileAct {
    Create { file: u8, byte: u8, request: Option<u8>, namespace: u8 },
    Delete { file: u8 },
    Upload { upload: u8, bytes: u8 },
    Part { upload: u8, part: u8, bytes: u8 },
    Complete { upload: u8, parts: Vec<u8> },
    Cancel { upload: u8 },
    Forget { file: u8, upload: u8, part: u8 },
}

pub(crate) fn file_act() -> impl Strategy<Value = FileAct> {
    let byte = prop_oneof![9 => Just(0u8), 1 => Just(1u8)];
    let request = prop_oneof![2 => Just(None), 1 => (0..2u8).prop_map(Some)];
    let namespace = prop_oneof![8 => Just(0u8), 4 => Just(1u8), 1 => Just(2u8)];
    prop_oneof![
        6 => (0..3u8, byte, request, namespace).prop_map(|(file, byte, request, namespace)| {
            FileAct::Create { file, byte, request, namespace }
        }),
        3 => (0..3u8).prop_map(|file| FileAct::Delete { file }),
        3 => (0..2u8, 2..4u8).prop_map(|(upload, bytes)| FileAct::Upload { upload, bytes }),
        6 => (0..2u8, 0..3u8, 1..3u8).prop_map(|(upload, part, bytes)| {
            FileAct::Part { upload, part, bytes }
        }),
        4 => (0..2u8, prop::collection::vec(0..3u8, 1..3))
            .prop_map(|(upload, parts)| FileAct::Complete { upload, parts }),
        1 => (0..2u8).prop_map(|upload| FileAct::Cancel { upload }),
        2 => (0..3u8, 0..2u8, 0..3u8)
            .prop_map(|(file, upload, part)| FileAct::Forget { file, upload, part }),
    ]
}

fn file_id(file: u8) -> String {
    format!("file-{file}")
}

fn upload_id(upload: u8) -> String {
    format!("upload_{upload:032x}")
}

fn part_id(upload: u8, part: u8) -> String {
    part_of_upload(&upload_id(upload), &format!("p{part}"))
}

fn folder(id: &str) -> String {
    format!("0123456789abcdef-{id}")
}

fn spec(namespace: u8) -> FileSpec {
    FileSpec {
        namespace: NAMESPACES[usize::from(namespace)].into(),
        key: String::new(),
        filename: "in.jsonl".into(),
        purpose: FilePurpose::Batch,
        ttl_ms: 0,
    }
}

fn extent(id: &str, byte: u8, bytes: u8) -> Extent {
    let pieces = vec![BlobRef { digest: [byte; 32], bytes: bytes.into() }];
    Extent { folder: folder(id), pieces }
}

impl FileAct {
    pub(crate) fn kind(&self) -> OpKind {
        // Never too old.
        let begun_at = LedgerMs(u64::MAX);
        match self.clone() {
            Self::Create { file, byte, request, namespace } => {
                let (id, request) = (file_id(file), request.map(|byte| [byte; 16]));
                let (spec, content) = (Box::new(spec(namespace)), extent(&id, byte, 1));
                OpKind::CreateFile(op::CreateFile { id, spec, request, content, begun_at })
            }
            Self::Delete { file } => OpKind::DeleteFile(op::DeleteFile { id: file_id(file) }),
            Self::Upload { upload, bytes } => {
                let (id, spec) = (upload_id(upload), Box::new(spec(upload)));
                OpKind::CreateUpload(op::CreateUpload { id, spec, bytes: bytes.into() })
            }
            Self::Part { upload, part, bytes } => {
                let (id, upload) = (part_id(upload, part), upload_id(upload));
                let content = extent(&id, bytes, bytes);
                OpKind::AddUploadPart(op::AddUploadPart { upload, id, content, begun_at })
            }
            Self::Complete { upload, parts } => {
                let parts = parts.into_iter().map(|part| part_id(upload, part)).collect();
                OpKind::CompleteUpload(op::CompleteUpload { id: upload_id(upload), parts })
            }
            Self::Cancel { upload } => {
                OpKind::CancelUpload(op::CancelUpload { id: upload_id(upload) })
            }
            Self::Forget { file, upload, part } => {
                let folders = vec![folder(&file_id(file)), folder(&part_id(upload, part))];
                let namespace = "default".into();
                OpKind::ForgetContent(op::ForgetContent { namespace, folders })
            }
        }
    }
}

fn pieces(content: &[Extent]) -> Vec<&BlobRef> {
    content.iter().flat_map(|extent| &extent.pieces).collect()
}

impl Files {
    fn remove_content(&mut self, namespace: &str, content: Vec<Extent>) {
        for Extent { folder, .. } in content {
            self.removed.insert((namespace.into(), folder), false);
        }
    }

    /// The namespace of a file.
    pub(crate) fn namespace_of(&self, id: &str) -> Option<&str> {
        self.files.get(id).map(|file| file.spec.namespace.as_str())
    }

    /// A file that a batch makes.
    pub(crate) fn add_output(&mut self, id: String, filename: String, content: Extent) {
        let spec = FileSpec { filename, purpose: FilePurpose::BatchOutput, ..spec(0) };
        self.files.insert(id, File { spec, request: None, content: vec![content] });
    }

    fn ended(id: &str, state: UploadState) -> Rejection {
        OpenAiRefusal::UploadEnded { id: id.into(), state: state.name().into() }.into()
    }

    fn upload(&mut self, id: &str) -> Result<&mut Upload, Rejection> {
        let unknown = || OpenAiRefusal::UploadUnknown(id.into()).into();
        self.uploads.get_mut(id).ok_or_else(unknown)
    }

    fn end(&mut self, id: &str, state: UploadState) -> Vec<(String, Extent)> {
        let upload = self.uploads.get_mut(id).expect("it exists");
        upload.state = state;
        std::mem::take(&mut upload.parts)
    }
}

impl Model {
    /// The operations on files and uploads.
    pub(crate) fn file_op(&mut self, kind: OpKind) -> Outcome {
        if self.version < 5 {
            return Err(Rejection::VersionLow { needs: 5, version: self.version });
        }
        match kind {
            OpKind::CreateFile(op) => self.create_file(op),
            OpKind::DeleteFile(op) => {
                let users = self.users_of_file(&op.id);
                if users > 0 {
                    return Err(OpenAiRefusal::FileInUse { id: op.id, users }.into());
                }
                if let Some(file) = self.files.files.remove(&op.id) {
                    self.files.remove_content(&file.spec.namespace, file.content);
                    self.events.push("file deleted".into());
                }
                Ok(Reply::Ok)
            }
            OpKind::CreateUpload(op) => self.create_upload(op),
            OpKind::AddUploadPart(op) => self.add_part(op),
            OpKind::CompleteUpload(op) => self.complete_upload(op),
            OpKind::CancelUpload(op) => match self.files.upload(&op.id)?.state {
                UploadState::Cancelled => Ok(Reply::Ok),
                UploadState::Completed => Err(Files::ended(&op.id, UploadState::Completed)),
                UploadState::Pending => {
                    let namespace = self.files.upload(&op.id)?.spec.namespace.clone();
                    let parts = self.files.end(&op.id, UploadState::Cancelled).into_iter();
                    self.files.remove_content(&namespace, parts.map(|(_, part)| part).collect());
                    Ok(Reply::Ok)
                }
            },
            OpKind::ForgetContent(op) => {
                for folder in op.folders {
                    let key = (op.namespace.clone(), folder);
                    self.files.removed.entry(key).and_modify(|gone| *gone = true);
                }
                Ok(Reply::Ok)
            }
            other => panic!("{other:?} is not about files"),
        }
    }

    fn create_file(&mut self, op: op::CreateFile) -> Outcome {
        let op::CreateFile { id, spec, request, content, .. } = op;
        let new = File { spec: *spec, request, content: vec![content] };
        let same = |file: &File| {
            (&file.spec, file.request, pieces(&file.content))
                == (&new.spec, new.request, pieces(&new.content))
        };
        let files = &self.files.files;
        let of_request = files.iter().find(|(_, file)| {
            request.is_some()
                && file.request == request
                && file.spec.namespace == new.spec.namespace
        });
        if let Some(file) = files.get(&id) {
            return if same(file) {
                Ok(Reply::Ok)
            } else {
                Err(OpenAiRefusal::FileConflict(id).into())
            };
        }
        if let Some((earlier, file)) = of_request {
            let reused = || OpenAiRefusal::IdempotencyKeyReused(earlier.clone()).into();
            return if same(file) { Ok(Reply::Ok) } else { Err(reused()) };
        }
        self.check_folder(&new.spec.namespace, &new.content[0].folder)?;
        self.files.files.insert(id, new);
        self.events.push("file created".into());
        Ok(Reply::Ok)
    }

    fn check_folder(&self, namespace: &str, folder: &str) -> Result<(), Rejection> {
        if !self.namespaces.contains_key(namespace) {
            return Err(Rejection::NamespaceUnknown(namespace.into()));
        }
        match self.files.removed.contains_key(&(namespace.into(), folder.into())) {
            true => Err(OpenAiRefusal::ContentStale.into()),
            false => Ok(()),
        }
    }

    fn create_upload(&mut self, op: op::CreateUpload) -> Outcome {
        let op::CreateUpload { id, spec, bytes } = op;
        if let Some(upload) = self.files.uploads.get(&id) {
            let same = upload.spec == *spec && upload.bytes == bytes;
            let conflict = OpenAiRefusal::FileConflict(id);
            return if same { Ok(Reply::Ok) } else { Err(conflict.into()) };
        }
        if !self.namespaces.contains_key(&spec.namespace) {
            return Err(Rejection::NamespaceUnknown(spec.namespace));
        }
        let (state, parts) = (UploadState::Pending, Vec::new());
        self.files.uploads.insert(id, Upload { spec: *spec, bytes, state, parts });
        Ok(Reply::Ok)
    }

    fn add_part(&mut self, op: op::AddUploadPart) -> Outcome {
        let upload = self.files.upload(&op.upload)?.clone();
        if upload.state != UploadState::Pending {
            return Err(Files::ended(&op.upload, upload.state));
        }
        if let Some((id, part)) = upload.parts.iter().find(|(id, _)| *id == op.id) {
            let conflict = || OpenAiRefusal::FileConflict(id.clone()).into();
            return if *part == op.content { Ok(Reply::Ok) } else { Err(conflict()) };
        }
        self.check_folder(&upload.spec.namespace, &op.content.folder)?;
        self.files.upload(&op.upload)?.parts.push((op.id, op.content));
        Ok(Reply::Ok)
    }

    fn complete_upload(&mut self, op: op::CompleteUpload) -> Outcome {
        let upload = self.files.upload(&op.id)?.clone();
        match upload.state {
            UploadState::Pending => {}
            UploadState::Completed => return Ok(Reply::Ok),
            UploadState::Cancelled => return Err(Files::ended(&op.id, upload.state)),
        }
        let mut content: Vec<Extent> = Vec::new();
        for (at, id) in op.parts.iter().enumerate() {
            let part = upload.parts.iter().find(|(part, _)| part == id);
            let (_, part) = part.ok_or(OpenAiRefusal::PartUnknown(id.clone()))?;
            if op.parts[..at].contains(id) {
                return Err(Rejection::Invalid(format!("part {id} is listed twice")));
            }
            content.push(part.clone());
        }
        let bytes = content.iter().map(Extent::bytes).sum();
        if bytes != upload.bytes {
            return Err(OpenAiRefusal::UploadBytes { bytes, declared: upload.bytes }.into());
        }
        let parts = self.files.end(&op.id, UploadState::Completed).into_iter();
        let unused = parts.filter(|(id, _)| !op.parts.contains(id)).map(|(_, part)| part);
        self.files.remove_content(&upload.spec.namespace, unused.collect());
        let file = File { spec: upload.spec, request: None, content };
        self.files.files.insert(file_of_upload(&op.id), file);
        self.events.push("upload completed".into());
        Ok(Reply::Ok)
    }

    /// The namespace of a file or an upload.
    pub(crate) fn namespace_of_file(&self, id: &str) -> Option<String> {
        let file = self.files.files.get(id).map(|file| &file.spec);
        let upload = self.files.uploads.get(id).map(|upload| &upload.spec);
        file.or(upload).map(|spec| spec.namespace.clone())
    }
}

pub(crate) fn same(ledger: &Ledger, model: &Model) -> TestCaseResult {
    let files = &model.files;
    for namespace in NAMESPACES {
        let page = FilePage { namespace, purpose: None, after: None, descending: false, max: 100 };
        let (listed, _) = ledger.api_file_page(page);
        let listed = listed.into_iter().map(|(id, file)| (id.to_owned(), file.content.clone()));
        let known = files.files.iter().filter(|(_, file)| file.spec.namespace == namespace);
        let known = known.map(|(id, file)| (id.clone(), file.content.clone()));
        prop_assert_eq!(listed.collect::<Vec<_>>(), known.collect::<Vec<_>>());
        let of_uploads = files.uploads.values().filter(|of| of.spec.namespace == namespace);
        let of_uploads = of_uploads.flat_map(|of| of.parts.iter().map(|(_, part)| part.bytes()));
        let of_files = files.files.values().filter(|of| of.spec.namespace == namespace);
        let of_files = of_files.flat_map(|of| of.content.iter().map(Extent::bytes));
        let bytes: u64 = of_files.chain(of_uploads).sum();
        prop_assert_eq!(ledger.stored_usage(namespace).bytes, bytes);
    }
    for (id, upload) in &files.uploads {
        let view = ledger.api_upload(id).expect("there");
        let parts: BTreeMap<_, _> = upload.parts.iter().cloned().collect();
        prop_assert_eq!((view.state, &view.parts), (upload.state, &parts));
    }
    let removable: BTreeSet<_> = ledger.removable_content(None, 100).into_iter().collect();
    let pending = files.removed.iter().filter(|(_, gone)| !**gone);
    prop_assert_eq!(removable, pending.map(|(key, _)| key.clone()).collect());
    Ok(())
}
