package io.mergerepl;

import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;

import io.delta.storage.HadoopFileSystemLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.S3AFileStatus;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import org.apache.hadoop.fs.s3a.audit.AuditSpanS3A;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * Writes a commit to S3 as one PUT with `If-None-Match: *`, as delta-rs does.
 *
 * Delta's own S3SingleDriverLogStore looks whether the file exists and then overwrites it: it replaces a commit that
 * another process wrote in between. An error of the PUT is no answer, as the store may have kept the object: the file is
 * read back. Our bytes mean success, others a lost race, no file another try. The bytes of two commits differ, as a
 * commit holds a UUID.
 */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {
    private static final String IF_ABSENT = "fs.option.create.conditional.overwrite";
    private static final int TRIES = 5;
    private static final long FIRST_PAUSE_MS = 100;

    public ConditionalPutLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
        FileSystem fs = path.getFileSystem(conf);
        byte[] content = lines(actions);
        if (overwrite) {
            try (FSDataOutputStream out = fs.create(path, true)) {
                out.write(content);
            }
            return;
        }
        for (int number = 1; ; number++) {
            try {
                putIfAbsent(fs, path, content);
                return;
            } catch (IOException error) {
                if (isWritten(fs, path, content, error)) {
                    return;
                }
                if (number == TRIES || Thread.currentThread().isInterrupted()) {
                    throw error;
                }
                pause(number, error);
            }
        }
    }

    /**
     * Lists the files of a log from this name on, without those before: logs grow, and a page has 1,000.
     *
     * VACUUM lists the folders of a table with this method, from the name "\0" on, and needs the folders in them.
     */
    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration conf) throws IOException {
        FileSystem fs = path.getFileSystem(conf);
        if (!(fs instanceof S3AFileSystem) || !path.getParent().getName().equals("_delta_log")) {
            return super.listFrom(path, conf);
        }
        Path from = fs.makeQualified(path);
        List<FileStatus> found = listFrom((S3AFileSystem) fs, from);
        if (found.isEmpty() && !fs.exists(from.getParent())) {
            throw new FileNotFoundException("No such file or directory: " + from.getParent());
        }
        return found.iterator();
    }

    /** Delta's S3LogStoreUtil does the same, but was compiled against another release of hadoop-aws. */
    private static List<FileStatus> listFrom(S3AFileSystem fs, Path from) throws IOException {
        Path folder = from.getParent();
        List<FileStatus> found = new ArrayList<>();
        try (AuditSpanS3A span = fs.createSpan("op_list_status", fs.pathToKey(from), null)) {
            Listing listing = fs.getListing();
            ListObjectsV2Request all =
                listing.createListObjectsRequest(fs.pathToKey(folder) + "/", "/", span).getV2();
            // The store compares bytes, and leaves out the key itself; names of log files are ASCII.
            S3ListRequest request = S3ListRequest.v2(all.toBuilder().startAfter(keyBefore(fs.pathToKey(from))).build());
            RemoteIterator<S3AFileStatus> files = listing.createFileStatusListingIterator(
                folder, request, file -> true, new Listing.AcceptAllButSelfAndS3nDirs(folder), span);
            while (files.hasNext()) {
                FileStatus file = files.next();
                if (file.isFile() && file.getPath().getName().compareTo(from.getName()) >= 0) {
                    found.add(file);
                }
            }
        }
        return found;
    }

    private static String keyBefore(String key) {
        int last = key.length() - 1;
        char before = (char) (key.charAt(last) - 1);
        return key.substring(0, last) + before + '~';
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return false;
    }

    private static byte[] lines(Iterator<String> actions) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            bytes.writeBytes((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        return bytes.toByteArray();
    }

    @SuppressWarnings({"rawtypes", "unchecked"})
    private static void putIfAbsent(FileSystem fs, Path path, byte[] content) throws IOException {
        FSDataOutputStreamBuilder builder = fs.createFile(path);
        // Without `overwrite` S3A would look for the file first; the condition decides in the store.
        builder.recursive().overwrite(true);
        builder.must(IF_ABSENT, true);
        try (FSDataOutputStream out = builder.build()) {
            out.write(content);
        }
    }

    /** Returns whether the file has these bytes, false without a file; throws if it has others, or cannot be read. */
    private static boolean isWritten(FileSystem fs, Path path, byte[] content, IOException error) throws IOException {
        byte[] found;
        try (InputStream in = fs.open(path)) {
            found = in.readAllBytes();
        } catch (FileNotFoundException absent) {
            return false;
        } catch (IOException unread) {
            error.addSuppressed(unread);
            throw error;
        }
        if (Arrays.equals(found, content)) {
            return true;
        }
        FileAlreadyExistsException lost = new FileAlreadyExistsException(path.toString());
        lost.addSuppressed(error);
        throw lost;
    }

    private static void pause(int number, IOException error) throws IOException {
        try {
            Thread.sleep((long) (FIRST_PAUSE_MS * (1 << number) * (0.5 + Math.random())));
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
            InterruptedIOException interrupted = new InterruptedIOException(error.getMessage());
            interrupted.initCause(error);
            throw interrupted;
        }
    }
}
