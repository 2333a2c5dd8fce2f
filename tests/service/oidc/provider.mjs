// The OpenID Connect provider 'oidc-provider' with three people who sign in with their names alone: ada is an operator, vera
// a viewer, and nora has no role. Prints its address when it is ready. NODE_MODULES is the folder with the package.
import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';

const { Provider } = await import(pathToFileURL(`${process.env.NODE_MODULES}/oidc-provider/lib/index.js`));

const groups = { ada: ['ops'], vera: ['readers'], nora: ['staff'] };
const client = {
  client_id: 'console',
  client_secret: process.env.CLIENT_SECRET,
  redirect_uris: ['http://127.0.0.1/ui/sign-in/callback'],
  post_logout_redirect_uris: ['http://127.0.0.1/ui/sign-out'],
};

const server = createServer();
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const issuer = `http://127.0.0.1:${server.address().port}`;
const provider = new Provider(issuer, {
  clients: [client],
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'], email: ['email'] },
  // Claims are in the ID token, as other providers send them.
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  cookies: { keys: ['keys of a test need not be secret'] },
  features: { devInteractions: { enabled: false }, rpInitiatedLogout: { enabled: true } },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  findAccount: (ctx, id) => ({
    accountId: id,
    claims: () => ({ sub: `subject of ${id}`, preferred_username: `${id}@example.com`, groups: groups[id] ?? [] }),
  }),
  async loadExistingGrant(ctx) {
    const { session, client: { clientId } } = ctx.oidc;
    const grant = new ctx.oidc.provider.Grant({ clientId, accountId: session.accountId });
    grant.addOIDCScope('openid profile email');
    await grant.save();
    return grant;
  },
});

// The ports of the instances are not known before they start.
const anyPort = (allowed) => (uri) => allowed.includes(uri.replace(/^(http:\/\/127\.0\.0\.1):\d+/, '$1'));
provider.Client.prototype.redirectUriAllowed = anyPort(client.redirect_uris);
provider.Client.prototype.postLogoutRedirectUriAllowed = anyPort(client.post_logout_redirect_uris);

const callback = provider.callback();
server.on('request', async (request, response) => {
  if (!request.url.startsWith('/interaction/')) return callback(request, response);
  if (request.method === 'GET') {
    response.setHeader('Content-Type', 'text/html');
    response.end('<!DOCTYPE html><title>Provider</title><link rel="icon" href="data:,"><h1>Who are you?</h1>'
      + '<form method="post"><label>Name <input name="login"></label> <button>Continue</button></form>');
    return undefined;
  }
  let body = '';
  for await (const part of request) body += part;
  const accountId = new URLSearchParams(body).get('login');
  return provider.interactionFinished(request, response, { login: { accountId } });
});
console.log(`provider ready at ${issuer}`);
