//! The terminal and the daemon: the only part of this crate with I/O.
//!
//! One thread asks the daemon, the other reads keys and draws. The screen is drawn at most twice a
//! second, and at once after a key; only changed characters are sent, so that a slow line or an
//! idle mesh costs almost nothing. However the program ends, the terminal is restored.

use std::io::{self, IsTerminal as _, Stdout};
use std::panic;
use std::process;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use meshport_daemon::Error;
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::view::{View, ViewRequest};
use meshport_daemon::clock;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::draw::draw;
use crate::look::Look;
use crate::model::{Key, Model, Outcome};

/// Answers that wait to be shown; with more, the daemon is asked later.
pub const MAX_WAITING: usize = 2;
/// Interval between redraws, unless a key was pressed.
const PICTURE: Duration = Duration::from_millis(500);
/// How long a key may wait while nothing is drawn.
const KEYS: Duration = Duration::from_millis(100);
/// Keys that are taken before one picture: a held key does not make it fall behind.
const MAX_KEYS: usize = 64;
/// How long the drawing thread may take to end after a signal.
const LEAVE: Duration = Duration::from_secs(1);
/// The exit code of a program that SIGHUP ends, as shells have it.
const HUNG_UP: i32 = 129;

/// The look, and how often the daemon is queried.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The abilities of the terminal.
    pub look: Look,
    /// Interval between queries.
    pub every: Duration,
}

/// A message of the asking thread.
enum News {
    Answer(Box<Result<View, Error>>),
    /// A signal asks the program to end.
    End,
}

/// Shows the daemon's view until a key or a signal ends it.
///
/// # Errors
/// See [`AdminClient::ask`] for the first question; errors of the terminal.
pub fn run(client: AdminClient, options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::io("start the event loop"))?;
    // A daemon that does not answer is printed as an error before the screen opens.
    let first = runtime.block_on(client.ask(&ViewRequest))?;
    // Before the screen opens: a signal without a handler would leave the terminal as it is then.
    let signals = runtime.block_on(async { signals() });
    let signals = signals.map_err(Error::io("listen for signals"))?;
    let (sender, receiver) = sync_channel(MAX_WAITING);
    thread::Builder::new()
        .name("ask".into())
        .spawn(move || runtime.block_on(ask(&client, options.every, signals, &sender)))
        .map_err(Error::io("start a thread"))?;
    let mut model = Model::new(clock::now());
    model.handle_answer(Ok(first), clock::now());
    let mut screen = Screen::open().map_err(Error::io("prepare the terminal"))?;
    let ended = show(&mut screen, &receiver, &mut model, options.look);
    drop(screen);
    ended.map_err(Error::io("show the view on the terminal"))
}

/// The signals that end the program. Ctrl-C is a key here; another process may send its signal.
fn signals() -> io::Result<[Signal; 3]> {
    let terminate = signal(SignalKind::terminate())?;
    Ok([terminate, signal(SignalKind::hangup())?, signal(SignalKind::interrupt())?])
}

/// Queries until the receiver is gone. The thread ends with the process.
async fn ask(
    client: &AdminClient,
    every: Duration,
    [mut terminate, mut hangup, mut interrupt]: [Signal; 3],
    sender: &SyncSender<News>,
) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.reset();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = terminate.recv() => break,
            _ = hangup.recv() => break,
            _ = interrupt.recv() => break,
        }
        // A terminal can go away without a signal to this process.
        if !io::stdout().is_terminal() {
            break;
        }
        let answer = client.ask(&ViewRequest).await;
        // A full queue means that the terminal is slow: the next answer will be newer.
        let full = sender.try_send(News::Answer(Box::new(answer)));
        if matches!(full, Err(std::sync::mpsc::TrySendError::Disconnected(_))) {
            return;
        }
    }
    let _ = sender.try_send(News::End);
    // Reading keys from a terminal that is gone never returns.
    tokio::time::sleep(LEAVE).await;
    close();
    process::exit(HUNG_UP);
}

fn show(
    screen: &mut Screen,
    news: &Receiver<News>,
    model: &mut Model,
    look: Look,
) -> io::Result<()> {
    loop {
        let now = clock::now();
        screen.draw(model, look, now)?;
        let drawn_at = now;
        loop {
            let has_key = event::poll(KEYS)?;
            if has_key && let Outcome::Quit = take_keys(model)? {
                return Ok(());
            }
            match news.try_recv() {
                Ok(News::Answer(answer)) => model.handle_answer(*answer, clock::now()),
                Ok(News::End) => return Ok(()),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
            if has_key || clock::now().saturating_duration_since(drawn_at) >= PICTURE {
                break;
            }
        }
    }
}

/// Takes all keys that were pressed since the last picture.
fn take_keys(model: &mut Model) -> io::Result<Outcome> {
    for _ in 0..MAX_KEYS {
        if let Event::Key(pressed) = event::read()?
            && let Some(key) = key(pressed)
            && let Outcome::Quit = model.handle_key(key)
        {
            return Ok(Outcome::Quit);
        }
        if !event::poll(Duration::ZERO)? {
            break;
        }
    }
    Ok(Outcome::Stay)
}

fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.kind == KeyEventKind::Release {
        return None;
    }
    let is_control = pressed.modifiers.contains(KeyModifiers::CONTROL);
    Some(match pressed.code {
        KeyCode::Char('c') if is_control => Key::Interrupt,
        KeyCode::Char('d') if is_control => Key::PageDown,
        KeyCode::Char('u') if is_control => Key::PageUp,
        KeyCode::Char(_) if is_control => return None,
        KeyCode::Char(c) => Key::Char(c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}

/// The terminal in raw mode, with the previous screen behind it.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        let former = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            close();
            former(info);
        }));
        enable_raw_mode()?;
        let opened = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        if opened.is_err() {
            close();
        }
        Ok(Self { terminal: opened? })
    }

    fn draw(&mut self, model: &mut Model, look: Look, now: Instant) -> io::Result<()> {
        let mut scrollable = 0;
        let drawn = self.terminal.draw(|frame| {
            let area = frame.area();
            scrollable = draw(frame.buffer_mut(), area, model, look, now);
        });
        drawn?;
        model.handle_rows(scrollable);
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        close();
    }
}

/// Restores the terminal. Nothing can be done if that fails.
fn close() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
