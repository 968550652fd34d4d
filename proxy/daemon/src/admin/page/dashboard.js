// The page of `meshport dashboard`: selects the node. Every member answers through the member to
// which this machine has a tunnel.

let viewer = new URLSearchParams(location.search).get("node") || "";
let offered = []; // nodes of the last view, by site

// Only views go through the mesh, so polls are slightly rarer than on the node itself.
shown.every = 3000;

function watch(node) {
  viewer = node;
  shown.source = node ? `/view?node=${encodeURIComponent(node)}` : "/view";
  etag = "";
  shown.selected = null;
  const link = node ? `?node=${encodeURIComponent(node)}` : location.pathname;
  history.replaceState(null, "", link);
  poll();
}

shown.drawRest = () => {
  const { node, nodes } = shown.view;
  // Those that run a daemon, or did.
  offered = nodes.filter((it) => !["left", "leaf"].includes(it.liveness))
    .map((it) => ({ name: it.name, site: it.site, isDown: it.liveness === "down" }));
  draw("viewer", [offered, node.name], () => {
    const sites = [...new Set(offered.map((it) => it.site))].sort();
    return sites.map((site) => h("optgroup", { label: site }, offered
      .filter((it) => it.site === site).sort((a, b) => a.name.localeCompare(b.name))
      .map((it) => h("option", { value: it.name, selected: it.name === node.name },
        it.name + (it.isDown ? " (down)" : "")))));
  });
  say("viewer-says", `through the mesh; ${count(offered.length, "node")} available`);
};

byId("viewer").addEventListener("change", (event) => watch(event.target.value));
if (viewer) watch(viewer);
