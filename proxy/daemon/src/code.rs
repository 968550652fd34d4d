//! Unmaps pages of the program's code and libraries that only the start needed. The kernel maps
//! sixteen pages around each touched one, so they are most of an idle node's memory. One of the few
//! files with unsafe code: no crate in the tree offers the call safely.

use std::fs;
use std::ops::Range;
use std::time::Duration;

use tokio::time::sleep;

/// By then the state is read, the sandbox entered, and the first tunnels are made.
const FIRST: Duration = Duration::from_secs(10);
/// From one time to the next. What is in use is mapped again within a millisecond, from memory.
const INTERVAL: Duration = Duration::from_secs(600);
/// Most mappings that are given back; the program and its four libraries have three each.
const MAX_MAPPINGS: usize = 64;

/// Where code and constants are mapped, each from one address to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Code(Vec<Range<usize>>);

impl Code {
    /// That of this program; none where the kernel does not say. To be asked before the sandbox,
    /// which hides the file that tells, and before anything is loaded that may be unloaded again.
    pub(super) fn of_this_program() -> Self {
        Self::in_smaps(&fs::read_to_string("/proc/self/smaps").unwrap_or_default())
    }

    /// The private mappings of files that are never written and of which no page is the process's
    /// own: not a library's table of addresses, say, that was filled in and locked.
    fn in_smaps(smaps: &str) -> Self {
        let mut found = Vec::new();
        let mut candidate = None;
        let mut own_kb = 0;
        for line in smaps.lines() {
            let mut fields = line.split_ascii_whitespace();
            match (fields.next(), fields.next()) {
                // A mapping's last line of those that matter.
                (Some("Swap:"), Some(kb)) if own_kb == 0 && kb == "0" => {
                    found.extend(candidate.take());
                }
                (Some("Anonymous:"), Some(kb)) => own_kb = kb.parse().unwrap_or(u64::MAX),
                (Some(range), Some(rights)) if !range.ends_with(':') => {
                    let of_file = fields.nth(3).is_some_and(|path| path.starts_with('/'));
                    let is_constant = matches!(rights, "r-xp" | "r--p") && of_file;
                    candidate = addresses(range).filter(|_| is_constant);
                    own_kb = u64::MAX;
                }
                _ => {}
            }
        }
        found.truncate(MAX_MAPPINGS);
        Self(found)
    }

    /// Unmaps all of it; what is still needed comes back when it is touched.
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "a call that takes an address")]
    fn give_back(&self) {
        for range in &self.0 {
            // SAFETY: the range is a private mapping of the program's file or of a library it was
            // started with, which stay mapped for as long as the process runs, without the right to
            // write. At the start no page of it differed from the file, in memory or swapped out,
            // and none can since. For such pages MADV_DONTNEED loses nothing: the next access finds
            // the same bytes in the file.
            let result = unsafe {
                libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_DONTNEED)
            };
            if result != 0 {
                let error = std::io::Error::last_os_error();
                tracing::debug!(%error, "pages of the program's code stay mapped");
            }
        }
    }

    /// Nothing is known of other kernels.
    #[cfg(not(target_os = "linux"))]
    fn give_back(&self) {}
}

/// Gives back what only the start needed of the code, and later what a rare task did. Never
/// returns.
pub(super) async fn give_back(code: Code) {
    sleep(FIRST).await;
    loop {
        code.give_back();
        sleep(INTERVAL).await;
    }
}

/// `start-end`, both in hexadecimal.
fn addresses(range: &str) -> Option<Range<usize>> {
    let (start, end) = range.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of a mapping, without the lines that do not matter.
    fn mapping(head: &str, anonymous_kb: u64, swap_kb: u64) -> String {
        format!(
            "{head}\nSize: 16 kB\nRss: 16 kB\nAnonymous: {anonymous_kb} kB\nSwap: {swap_kb} kB\n\
             SwapPss: 0 kB\nVmFlags: rd mr mw me\n"
        )
    }

    #[test]
    fn code_and_constants_are_a_files_and_unchanged() {
        let smaps = [
            mapping("1000-2000 r--p 00000000 fe:00 42      /usr/bin/meshport", 0, 0),
            mapping("2000-6000 r-xp 00001000 fe:00 42      /usr/bin/meshport (deleted)", 0, 0),
            // Relocated and locked; the same, swapped out; and a breakpoint.
            mapping("6000-7000 r--p 00005000 fe:00 42      /usr/bin/meshport", 4, 0),
            mapping("7000-8000 r--p 00006000 fe:00 42      /usr/lib/libc.so.6", 0, 4),
            mapping("8000-9000 r-xp 00007000 fe:00 42      /usr/lib/libc.so.6", 4, 0),
            mapping("9000-a000 rw-p 00008000 fe:00 42      /usr/bin/meshport", 0, 0),
            mapping("a000-b000 r-xp 00000000 00:00 0", 0, 0),
            mapping("b000-c000 r--s 00000000 fe:00 42      /usr/share/data", 0, 0),
            mapping("c000-d000 r-xp 00000000 00:00 0       [vdso]", 0, 0),
            mapping("d000-e000 r-xp 00000000 fe:00 42      /usr/lib/libm.so.6", 0, 0),
        ];
        let expected = Code(vec![0x1000..0x2000, 0x2000..0x6000, 0xd000..0xe000]);
        assert_eq!(Code::in_smaps(&smaps.concat()), expected);
        for cut in ["nonsense\n-\n2000-", "1000-2000 r-xp 0 fe:00 42 /x\nAnonymous: 0 kB\n", ""] {
            assert_eq!(Code::in_smaps(cut), Code(Vec::new()), "{cut}");
        }
    }

    /// KiB of the mappings that are in memory.
    #[cfg(target_os = "linux")]
    fn resident(code: &Code) -> u64 {
        let smaps = fs::read_to_string("/proc/self/smaps").expect("the kernel tells");
        let size = |range: &Range<usize>| {
            let begins = format!("{:x}-{:x} ", range.start, range.end);
            let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&begins));
            let line = lines.find(|line| line.starts_with("Rss:")).expect("each has a size");
            let size = line.split_ascii_whitespace().nth(1);
            size.and_then(|size| size.parse::<u64>().ok()).expect("a number")
        };
        code.0.iter().map(size).sum()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_start_alone_needed_is_given_back() {
        let code = Code::of_this_program();
        let own = resident as fn(&Code) -> u64 as usize;
        assert!(code.0.iter().any(|range| range.contains(&own)), "the program itself is there");
        // Of this program's many tests the others may run meanwhile, but hardly all at once.
        let before = resident(&code);
        code.give_back();
        let after = resident(&code);
        assert!(after < before, "{before} KiB stay {after} KiB");
    }
}
