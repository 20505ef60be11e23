//! Owns: compressed files: gzip and zstd, detected by their first bytes.
//!
//! Invariant: memory is bounded, whatever the file claims. A file that is truncated, corrupt, or expands beyond a
//! bound is an error. Files of several members or frames are read to their end.
//! Absent: the meaning of the text.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// A larger window than 128 MiB is refused.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
const BUFFER_BYTES: usize = 128 << 10;
/// Bytes that any file may expand to.
const EXPANDED_BYTES_FREE: u64 = 1 << 30;
/// Beyond these, the maximum of expanded bytes for each byte read.
const EXPANSION_MAX: u64 = 10_000;

/// The text of a reader.
pub(super) type Text<'a> = Box<dyn Read + Send + 'a>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstd,
}

impl Packing {
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// By the first bytes.
    fn of_content(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // A skippable frame, which some writers put first.
            [first, 0x2a, 0x4d, 0x18, ..] if first & 0xf0 == 0x50 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The compression that a file name implies.
    fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "gz" | "gzip" => Some(Self::Gzip),
            "zst" | "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The text of a file; `read` counts the bytes of the file itself.
pub(super) fn unpack<'a>(
    path: &Path,
    file: impl Read + Send + 'a,
    read: &'a AtomicU64,
) -> io::Result<Text<'a>> {
    let mut file = BufReader::with_capacity(BUFFER_BYTES, Counted { file, read, own: 0 });
    let first = file.fill_buf()?;
    let (found, promised) = (Packing::of_content(first), Packing::of_name(path));
    if let Some(promised) = promised
        && found.is_none()
    {
        let message =
            format!("its name says that it is a {0} file, but it is not", promised.name());
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(match found {
        None => Box::new(file),
        Some(packing @ Packing::Gzip) => {
            Box::new(Bounded { text: MultiGzDecoder::new(file), packing, expanded: 0 })
        }
        Some(packing @ Packing::Zstd) => {
            let mut text = zstd::stream::read::Decoder::with_buffer(file)?;
            text.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(Bounded { text, packing, expanded: 0 })
        }
    })
}

/// A file whose bytes are counted.
struct Counted<'a, R> {
    file: R,
    read: &'a AtomicU64,
    own: u64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.own += len as u64;
        self.read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

/// The number of bytes of the file itself that were read.
trait Source {
    fn own(&self) -> u64;
}

impl<R: Read> Source for MultiGzDecoder<BufReader<Counted<'_, R>>> {
    fn own(&self) -> u64 {
        self.get_ref().get_ref().own
    }
}

impl<R: Read> Source for zstd::stream::read::Decoder<'_, BufReader<Counted<'_, R>>> {
    fn own(&self) -> u64 {
        self.get_ref().get_ref().own
    }
}

/// A text that may not exceed its file's size by too much.
struct Bounded<R> {
    text: R,
    packing: Packing,
    expanded: u64,
}

impl<R: Read + Source> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let name = self.packing.name();
        let len = self.text.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), format!("the {name} file is cut off"))
            }
            _ if error.get_ref().is_some_and(|inner| inner.is::<rollout_storage::BlobError>()) => {
                error
            }
            kind => io::Error::new(kind, format!("it is not a valid {name} file: {error}")),
        })?;
        self.expanded += len as u64;
        let allowed = self.text.own().saturating_mul(EXPANSION_MAX);
        if self.expanded > allowed.saturating_add(EXPANDED_BYTES_FREE) {
            let message = format!(
                "the {name} file expands more than {EXPANSION_MAX} times, beyond 1 GiB, which no text does"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        zstd::encode_all(text, 1).unwrap()
    }

    fn read(name: &str, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let counted = AtomicU64::new(0);
        let mut text = Vec::new();
        let unpacked = unpack(Path::new(name), bytes, &counted)
            .and_then(|mut reader| reader.read_to_end(&mut text));
        unpacked.map_err(|error| error.to_string())?;
        assert_eq!(counted.load(Ordering::Relaxed), bytes.len() as u64);
        Ok(text)
    }

    #[test]
    fn files_of_several_members_and_frames_are_read_to_their_end() {
        for pack in [gzip, zstd] {
            let several = [pack(b"one\n"), pack(b""), pack(b"two\n")].concat();
            assert_eq!(read("a.jsonl", &several).unwrap(), b"one\ntwo\n");
        }
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &zstd(b"x")].concat();
        assert_eq!(read("a.zst", &skipped).unwrap(), b"x");
        assert_eq!(read("a.jsonl", b"plain").unwrap(), b"plain");
        assert_eq!(read("a.jsonl", b"").unwrap(), b"");
    }

    #[test]
    fn a_file_that_is_cut_off_broken_or_misnamed_is_an_error() {
        let text: Vec<u8> =
            (0..200_000u32).flat_map(|n| n.wrapping_mul(2654435761).to_le_bytes()).collect();
        for (name, pack) in [("gzip", gzip as fn(&[u8]) -> Vec<u8>), ("zstd", zstd)] {
            let packed = pack(&text);
            for len in [packed.len() - 1, packed.len() / 2, 12] {
                let error = read("a", &packed[..len]).map(|text| text.len()).unwrap_err();
                assert_eq!(error, format!("the {name} file is cut off"), "{len}");
            }
            let mut broken = packed.clone();
            broken[4..12].fill(0xff);
            let error = read("a", &broken).map(|text| text.len()).unwrap_err();
            assert!(error.contains(&format!("not a valid {name} file")), "{error}");
        }
        assert!(read("a.gz", b"plain").unwrap_err().contains("a gzip file, but it is not"));
        assert!(read("a.zst", b"").unwrap_err().contains("a zstd file, but it is not"));
    }

    #[test]
    fn a_bomb_is_an_error_after_a_bounded_number_of_bytes() {
        let zeros = zstd::encode_all(io::repeat(0).take(3 << 30), 1).unwrap();
        assert!(zeros.len() < 150_000, "{}", zeros.len());
        let counted = AtomicU64::new(0);
        let mut text = unpack(Path::new("a"), &zeros[..], &counted).unwrap();
        let error = io::copy(&mut text, &mut io::sink()).unwrap_err();
        assert!(error.to_string().contains("expands more than"), "{error}");
    }
}
