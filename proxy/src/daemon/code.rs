//! The pages of the program's code. A start goes through far more of them than what follows, and
//! the kernel maps sixteen around each one that is touched: of an idle node's memory they are the
//! larger part. One of the few files with unsafe code: no crate in the tree offers the call safely.

use std::fs;
use std::ops::Range;
use std::time::Duration;

use tokio::time::sleep;

/// By then the state is read, the sandbox entered, and the first tunnels are made.
const FIRST: Duration = Duration::from_secs(10);
/// From one time to the next. What is in use is mapped again within a millisecond, from memory.
const INTERVAL: Duration = Duration::from_secs(600);

/// Where the program's code is mapped, from one address to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Code(Range<usize>);

impl Code {
    /// That of this program; `None` where the kernel does not say. To be asked before the sandbox,
    /// which hides the file that tells.
    pub(super) fn of_this_program() -> Option<Self> {
        Self::around(Self::of_this_program as fn() -> _ as usize, &maps()?)
    }

    /// The mapping of a file around an address, if nothing but the file can be in it: a private one
    /// that is read and run and never written.
    fn around(address: usize, maps: &str) -> Option<Self> {
        maps.lines().find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let range =
                usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
            let is_code = fields.next() == Some("r-xp") && fields.nth(3)?.starts_with('/');
            (is_code && range.contains(&address)).then_some(Self(range))
        })
    }

    /// Unmaps all of it; what is still needed comes back when it is touched.
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "a call that takes an address")]
    fn give_back(&self) {
        // SAFETY: the range is a private mapping of the program's file without the right to write,
        // so that no page of it differs from the file, and it stays mapped for as long as the
        // process runs. For such pages MADV_DONTNEED loses nothing: the next access finds the same
        // bytes in the file. No reference into it is held as anything but code.
        let result = unsafe {
            libc::madvise(self.0.start as *mut libc::c_void, self.0.len(), libc::MADV_DONTNEED)
        };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            tracing::debug!(%error, "the pages of the program's code stay mapped");
        }
    }

    /// Nothing is known of other kernels.
    #[cfg(not(target_os = "linux"))]
    fn give_back(&self) {}
}

/// Gives back what only the start needed of the code, and later what a rare task did. Never
/// returns.
pub(super) async fn give_back(code: Option<Code>) {
    let Some(code) = code else { return std::future::pending().await };
    sleep(FIRST).await;
    loop {
        code.give_back();
        sleep(INTERVAL).await;
    }
}

fn maps() -> Option<String> {
    fs::read_to_string("/proc/self/maps").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 42      /usr/bin/meshport
2000-6000 r-xp 00001000 fe:00 42      /usr/bin/meshport (deleted)
6000-7000 r--p 00005000 fe:00 42      /usr/bin/meshport
8000-9000 r-xp 00000000 00:00 0
9000-a000 rwxp 00000000 fe:00 42      /usr/bin/meshport
b000-c000 r-xp 00000000 00:00 0       [vdso]
";

    #[test]
    fn code_is_a_files_and_never_written() {
        assert_eq!(Code::around(0x3000, MAPS), Some(Code(0x2000..0x6000)));
        for elsewhere in [0x1000, 0x6000, 0x7800, 0x8000, 0x9000, 0xb000] {
            assert_eq!(Code::around(elsewhere, MAPS), None, "{elsewhere:x}");
        }
        assert_eq!(Code::around(0x3000, "nonsense\n-\n2000-"), None);
    }

    /// KiB of a mapping that are in memory.
    #[cfg(target_os = "linux")]
    fn resident(code: &Code) -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("the kernel tells");
        let begins = format!("{:x}-{:x} ", code.0.start, code.0.end);
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&begins));
        let line = lines.find(|line| line.starts_with("Rss:")).expect("each has a size");
        line.split_ascii_whitespace().nth(1).and_then(|size| size.parse().ok()).expect("a number")
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_start_alone_needed_is_given_back() {
        let code = Code::of_this_program().expect("this is code");
        // Of this program's many tests the others may run meanwhile, but hardly all at once.
        let before = resident(&code);
        code.give_back();
        let after = resident(&code);
        assert!(after < before, "{before} KiB stay {after} KiB");
    }
}
