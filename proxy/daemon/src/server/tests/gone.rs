//! A socket, or its folder, that somebody removes.

use super::*;

/// Waits until that is so. Nothing but another look shows it.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    let waits = async {
        while !is_so().await {
            looks.tick().await;
        }
    };
    timeout(Duration::from_secs(60), waits).await.expect(what);
}

#[tokio::test]
async fn a_socket_that_somebody_removes_is_there_again() {
    let fixture = Fixture::start().await;
    fs::remove_file(&fixture.socket).expect("it is there");
    let client = AdminClient::new(&fixture.socket);
    until("it answers again", async || client.ask(&StatusRequest).await.is_ok()).await;
    let socket = fixture.stop().await;
    assert!(!socket.exists(), "the second goes with the server too");
}

#[tokio::test]
async fn a_folder_that_somebody_removes_is_there_again_or_the_loss_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let removed = folder.path().join("run");
    let socket = removed.join("admin.sock");
    let server = AdminServer::bind(&socket, None).await.expect("it makes the folder");
    let facts = server.facts();
    let mode = || fs::metadata(&removed).expect("it is there").permissions().mode();
    let before = mode();
    tokio::spawn(server.serve(Fake, std::future::pending()));
    let client = AdminClient::new(&socket);
    let answers = async || client.ask(&StatusRequest).await.is_ok();
    until("it answers", answers).await;

    fs::remove_dir_all(&removed).expect("it is there");
    until("it answers again", answers).await;
    assert_eq!((mode(), facts.lost_socket()), (before, None));

    // Even root cannot create anything in a file.
    fs::remove_dir_all(&removed).expect("it is there");
    fs::write(&removed, "").expect("written");
    until("the loss is known", async || facts.lost_socket().is_some()).await;
    let lost = facts.lost_socket().expect("it is known");
    assert!(lost.detail.contains("removed and cannot be created again (cannot"), "{lost}");
    assert!(lost.remedy.contains("restart the daemon"), "{lost}");
    fs::remove_file(&removed).expect("it is there");
    until("it answers once it can", answers).await;
    assert_eq!(facts.lost_socket(), None);
}
