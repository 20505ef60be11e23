//! Operations on files and uploads, as lines of a story name them.

use super::args::{Args, Parsed};
use rollout_ledger::id::LedgerMs;
use rollout_ledger::{
    BlobRef, Extent, FilePage, FilePurpose, FileSpec, Ledger, OpKind, op, part_of_upload,
};

fn spec(args: &mut Args) -> Parsed<Box<FileSpec>> {
    Ok(Box::new(FileSpec {
        namespace: args.text_or("namespace", "default"),
        key: args.text_or("key", ""),
        filename: args.text_or("filename", "in.jsonl"),
        purpose: match args.text_or("purpose", "batch").as_str() {
            "batch" => FilePurpose::Batch,
            _ => FilePurpose::UserData,
        },
        ttl_ms: args.number("ttl", 0)?,
    }))
}

fn folder(id: &str) -> String {
    format!("0123456789abcdef-{id}")
}

fn content(args: &mut Args, id: &str) -> Parsed<Extent> {
    let piece = BlobRef { digest: [args.number("byte", 1)?; 32], bytes: args.number("bytes", 10)? };
    Ok(Extent { folder: folder(id), pieces: vec![piece] })
}

fn upload(args: &mut Args) -> Parsed<String> {
    Ok(format!("upload_{:032x}", args.number("n", 1)?))
}

/// The operation of a line; `None` if it is none on files.
pub(crate) fn file(args: &mut Args) -> Parsed<Option<OpKind>> {
    let name = args.name.clone();
    Ok(Some(match name.as_str() {
        // Example: file id=file-1 bytes=10 byte=1 request=1 ttl=3600000 begun=0 key=aB3dE6gH
        "file" => {
            let id = args.text("id")?;
            let request = match args.number("request", 0)? {
                0 => None,
                byte => Some([byte; 16]),
            };
            let (content, spec) = (content(args, &id)?, spec(args)?);
            let begun_at = LedgerMs(args.number("begun", 0)?);
            OpKind::CreateFile(op::CreateFile { id, spec, request, content, begun_at })
        }
        // Example: delete-file id=file-1
        "delete-file" => OpKind::DeleteFile(op::DeleteFile { id: args.text("id")? }),
        // Example: upload n=1 bytes=20
        "upload" => {
            let (id, spec, bytes) = (upload(args)?, spec(args)?, args.number("bytes", 20)?);
            OpKind::CreateUpload(op::CreateUpload { id, spec, bytes })
        }
        // Example: part n=1 own=a bytes=10
        "part" => {
            let upload = upload(args)?;
            let id = part_of_upload(&upload, &args.text("own")?);
            let content = content(args, &id)?;
            let begun_at = LedgerMs(args.number("begun", 0)?);
            OpKind::AddUploadPart(op::AddUploadPart { upload, id, content, begun_at })
        }
        // Example: complete-upload n=1 parts=a,b
        "complete-upload" => {
            let id = upload(args)?;
            let parts = args.list("parts").iter().map(|own| part_of_upload(&id, own)).collect();
            OpKind::CompleteUpload(op::CompleteUpload { id, parts })
        }
        // Example: cancel-upload n=1
        "cancel-upload" => OpKind::CancelUpload(op::CancelUpload { id: upload(args)? }),
        // Example: forget-content ids=file-1,file-2
        "forget-content" => {
            let folders = args.list("ids").iter().map(|id| folder(id)).collect();
            let namespace = args.text_or("namespace", "default");
            OpKind::ForgetContent(op::ForgetContent { namespace, folders })
        }
        _ => return Ok(None),
    }))
}

/// Every file of the namespace `default`, what its files and uploads use, and the content to remove.
pub(crate) fn files(ledger: &Ledger) -> String {
    let page = FilePage {
        namespace: "default",
        purpose: None,
        after: None,
        descending: false,
        max: usize::MAX,
    };
    let (files, _) = ledger.api_file_page(page);
    let file = |(id, file): (&str, &rollout_ledger::ApiFile)| {
        let folders = file.content.iter().map(|extent| extent.folder.as_str());
        let folders: Vec<_> = folders.collect();
        format!("{id}: {} bytes in {}", file.bytes, folders.join(", "))
    };
    let mut lines: Vec<String> = files.into_iter().map(file).collect();
    let used = ledger.stored_usage("default");
    lines.push(format!("{} files, {} uploads, {} bytes", used.files, used.uploads, used.bytes));
    let removable = ledger.removable_content(None, usize::MAX).into_iter();
    lines.extend(removable.map(|(namespace, folder)| format!("remove {namespace} {folder}")));
    lines.join("\n")
}
