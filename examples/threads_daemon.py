"""A threaded web server: GET /alice?hello asks in alice's session. Ends with Ctrl-C."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import motet

agent = motet.Agent("helper", model="demo")
host = motet.HostThread(agents=[agent])


class Ask(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urlsplit(self.path)
        try:
            answer = host.run("helper", unquote(url.query), session=f"web:{url.path}", timeout=30)
        except motet.InputValidation as error:
            self.send_error(400, str(error))
        except (motet.MotetError, TimeoutError) as error:
            self.send_error(503, type(error).__name__)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.output.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    with host, ThreadingHTTPServer(("127.0.0.1", 0), Ask) as server:
        print("listening on", server.server_port, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("leaving")


if __name__ == "__main__":
    main()
