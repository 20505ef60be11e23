//! Owns: a Parquet file's pages, without those that claim more values than their bytes can hold.
//!
//! The library allocates as many values as a dictionary page claims, 64 GB for one number in a file of 400 bytes, and
//! aborts the process if there is not enough memory.
//! Invariant: a page that passes has no more values than [`VALUES_MAX`], and a dictionary no more than its bytes.
//! Absent: other defects of a page; the library reports those.

use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

/// The most values of a page. Writers start another page after a megabyte, or some ten thousand rows.
const VALUES_MAX: u32 = 1 << 26;

/// A file of bounded pages.
pub(super) struct Bounded<R>(pub(super) R);

impl<R: FileReader> FileReader for Bounded<R> {
    fn metadata(&self) -> &ParquetMetaData {
        self.0.metadata()
    }

    fn num_row_groups(&self) -> usize {
        self.0.num_row_groups()
    }

    fn get_row_group(&self, group: usize) -> Result<Box<dyn RowGroupReader + '_>> {
        Ok(Box::new(Group(self.0.get_row_group(group)?)))
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_file(projection, self)
    }
}

struct Group<'a>(Box<dyn RowGroupReader + 'a>);

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.0.metadata()
    }

    fn num_columns(&self) -> usize {
        self.0.num_columns()
    }

    fn get_column_page_reader(&self, column: usize) -> Result<Box<dyn PageReader>> {
        Ok(Box::new(Pages(self.0.get_column_page_reader(column)?)))
    }

    fn get_column_bloom_filter(&self, column: usize) -> Option<&Sbbf> {
        self.0.get_column_bloom_filter(column)
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

struct Pages(Box<dyn PageReader>);

/// Refuses a page that claims more values than it can have.
fn checked(page: Page) -> Result<Page> {
    // A dictionary value takes at least one byte; a value of a data page may be null and take none.
    let (values, most) = match &page {
        Page::DictionaryPage { buf, num_values, .. } => (*num_values, buf.len()),
        Page::DataPage { num_values, .. } | Page::DataPageV2 { num_values, .. } => {
            (*num_values, VALUES_MAX as usize)
        }
    };
    match values as usize <= most {
        true => Ok(page),
        false => Err(ParquetError::General(format!("a page claims to have {values} values"))),
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.0.get_next_page()?.map(checked).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.0.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.0.at_record_boundary()
    }
}
