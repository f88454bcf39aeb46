// Guarded calls: java Guard.java DEPENDENCY URL...   Without a decision, the call is made and not reported.
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.*;
import java.time.Duration;
import java.util.regex.Pattern;

public class Guard {
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static final String SIDECAR = System.getenv().getOrDefault("SIDECAR_URL", "http://127.0.0.1:7480");
    static final String TOKEN_FILE = System.getenv().getOrDefault("SIDECAR_TOKEN_FILE", "/dev/null");
    static final String TIMEOUT = System.getenv().getOrDefault("SIDECAR_TIMEOUT_MS", "100");

    static String ask(String path, String json) {
        try {
            // Now: the file may have been replaced.
            var token = Files.readString(Path.of(TOKEN_FILE)).strip();
            var request = HttpRequest.newBuilder(URI.create(SIDECAR + path))
                .timeout(Duration.ofMillis(Long.parseLong(TIMEOUT))).header("Content-Type", "application/json")
                .header("Authorization", "Bearer " + token).POST(HttpRequest.BodyPublishers.ofString(json)).build();
            var answer = CLIENT.send(request, BodyHandlers.ofString());
            if (answer.statusCode() == 200) return answer.body();
            // A mistake here, such as a wrong token.
            if (answer.statusCode() < 500) System.err.println("sidecar: " + answer.body());
            return "";
        } catch (IllegalArgumentException error) { // its text may have the token
            System.err.println("sidecar: the address, the timeout or the token is malformed");
            return "";
        } catch (java.io.IOException error) {
            return "";
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt(); // the call ends with it
            return "";
        }
    }

    static String member(String json, String name) {
        var found = Pattern.compile("\"" + name + "\":\"?([^\",}]+)").matcher(json);
        return found.find() ? found.group(1) : "";
    }

    static String kindOf(Exception error) {
        if (error instanceof InterruptedException) return "cancelled"; // the vendor did nothing wrong
        if (error instanceof HttpTimeoutException) return "timeout";
        if (error instanceof java.net.ConnectException) return "connect";
        return error instanceof javax.net.ssl.SSLHandshakeException ? "tls" : "reset";
    }

    static HttpResponse<String> guarded(String dependency, HttpRequest.Builder request) throws Exception {
        var call = ask("/v1/calls", "{\"dependency\":\"" + dependency + "\"}");
        if (member(call, "allowed").equals("false")) throw new IllegalStateException("refused " + member(call, "reason"));
        var timeout = member(call, "timeout_ms");
        // Without a decision, the call has a bound too.
        request.timeout(Duration.ofMillis(timeout.matches("[0-9]+") ? Long.parseLong(timeout) : 30_000));
        var begun = System.nanoTime();
        var how = "\"error\":\"local\"";
        try {
            var answer = CLIENT.send(request.build(), BodyHandlers.ofString());
            var wait = answer.headers().firstValue("Retry-After").orElse("").replaceAll("[^ -!#-\\[\\]-~]", "");
            how = "\"status\":" + answer.statusCode() + ",\"retry_after\":\"" + wait + "\"";
            return answer;
        } catch (java.io.IOException | InterruptedException error) {
            how = "\"error\":\"" + kindOf(error) + "\"";
            throw error;
        } finally {
            var elapsed = ",\"elapsed_ms\":" + (System.nanoTime() - begun) / 1_000_000;
            var permit = member(call, "permit");
            if (!permit.isEmpty()) ask("/v1/reports", "[{\"permit\":\"" + permit + "\"," + how + elapsed + "}]");
        }
    }

    public static void main(String[] arguments) {
        for (var url : java.util.Arrays.asList(arguments).subList(1, arguments.length)) {
            try {
                System.out.println(guarded(arguments[0], HttpRequest.newBuilder(URI.create(url))).statusCode());
            } catch (Exception error) {
                System.out.println(error.getMessage());
            }
        }
    }
}
