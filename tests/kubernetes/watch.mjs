// Watches a config map with the JavaScript client, each watch a connection of its own, as its
// examples show it: a watch that ends is begun again.
//
// Prints `INDEX VALUE` for each event, and on standard error how each watch ended. Arguments:
// server, authority, token, name, number of watches. MESHPORT_KUBERNETES_NODE is the folder of its
// node_modules.

import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const installed = createRequire(`${process.env.MESHPORT_KUBERNETES_NODE}/`);
const client = installed.resolve('@kubernetes/client-node');
const { KubeConfig, Watch } = await import(pathToFileURL(client));

const [server, authority, token, name, count] = process.argv.slice(2);
const config = new KubeConfig();
config.loadFromOptions({
  clusters: [{ name: 'test', server, caFile: authority }],
  users: [{ name: 'me', token }],
  contexts: [{ name: 'test', cluster: 'test', user: 'me' }],
  currentContext: 'test',
});

function follow(index) {
  const again = (problem) => {
    const text = problem ? `${problem.code ?? problem.name}: ${problem.message}` : 'no error';
    console.error(`watch ${index}: ${text}`);
    setTimeout(() => follow(index), 100);
  };
  new Watch(config)
    .watch(
      '/api/v1/namespaces/default/configmaps',
      { fieldSelector: `metadata.name=${name}` },
      (_, object) => console.log(`${index} ${object.data?.n ?? '-'}`),
      again,
    )
    .catch(again);
}

for (let index = 0; index < Number(count); index++) {
  follow(index);
}
