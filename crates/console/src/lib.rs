//! The web console's bundle, as it was built from the folder `console`; nothing where it was not.

#![forbid(unsafe_code)]

/// A file of the bundle.
#[derive(Debug)]
pub struct File {
    /// Path of the file in the bundle, as in `assets/index.js`.
    pub path: &'static str,
    /// Content of the file.
    pub plain: &'static [u8],
    /// Content of the file, compressed with gzip.
    pub gzip: &'static [u8],
}

/// By path.
static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// True if the program was built with the console.
pub fn is_there() -> bool {
    !FILES.is_empty()
}

/// Returns the file at a path of the bundle.
pub fn find_file(path: &str) -> Option<&'static File> {
    let found = FILES.binary_search_by(|file| file.path.cmp(path));
    FILES.get(found.ok()?)
}

impl File {
    /// Returns the media type of the file, for browsers.
    pub fn media_type(&self) -> &'static str {
        match self.path.rsplit_once('.').map(|(_, end)| end) {
            Some("html") => "text/html; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some("png") => "image/png",
            Some("ico") => "image/x-icon",
            Some("json") => "application/json",
            Some("woff2") => "font/woff2",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_path() {
        for file in FILES {
            assert_eq!(
                super::find_file(file.path).map(|found| found.path),
                Some(file.path)
            );
            assert!(file.gzip.starts_with(&[0x1f, 0x8b]), "{}", file.path);
        }
        assert!(super::find_file("../Cargo.toml").is_none());
        assert_eq!(is_there(), super::find_file("index.html").is_some());
    }

    /// The issue of the console's bundle: what a browser loads is small.
    #[test]
    fn the_bundle_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.gzip.len()).sum();
        assert!(bytes <= 300_000, "{bytes} bytes compressed");
    }
}
